import hashlib

import pytest

from common.cid import Cid, cid_of
from common.refusal import Refused
from common.unixfs_blocks import DagBlock, read_unixfs_block


def field(number: int, value: bytes | int) -> bytes:
    """Encode a protobuf field of fewer than 128 bytes."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    return bytes((number << 3 | 2, len(value))) + value


def node(*links: Cid, content: bytes = b"", kind: int = 2, old: bool = False) -> tuple[Cid, bytes]:
    """Encode a dag-pb node. `old`: its links are CIDv0."""
    named = [field(1, each.encode()[2:] if old else each.encode()) + field(2, b"") + field(3, 9) for each in links]
    data = field(1, kind) + (field(2, content) if content else b"") + field(3, 9)
    raw = b"".join(field(2, each) for each in named) + field(1, data)
    return Cid("dag-pb", hashlib.sha256(raw).digest()), raw


def test_raw_block_is_its_content() -> None:
    assert read_unixfs_block(cid_of(b"there"), b"there") == DagBlock(b"there", ())


@pytest.mark.parametrize("old", [False, True], ids=["CIDv1", "CIDv0"])
def test_node_returns_content_and_links_in_order(old: bool) -> None:
    leaf, raw_leaf = node(content=b"one", kind=0)
    other, _ = node(content=b"two")
    root, raw = node(leaf, other, leaf, content=b"zero", old=old)
    assert read_unixfs_block(root, raw) == DagBlock(b"zero", (leaf, other, leaf))
    assert read_unixfs_block(leaf, raw_leaf) == DagBlock(b"one", ())


def test_bytes_of_another_block_are_refused() -> None:
    root, raw = node(cid_of(b"one"))
    with pytest.raises(Refused, match="the bytes do not match block"):
        read_unixfs_block(root, raw + b"\0")


@pytest.mark.parametrize(
    "raw",
    [
        node(kind=1)[1],  # a folder
        b"",
        field(2, field(1, b"\x12\x20short")) + field(1, field(1, 2)),
        field(2, field(2, b"name")) + field(1, field(1, 2)),
        field(1, field(1, 2)) + b"\x0a\x7f",
        b"\xff" * 12,
        b"\x0d\x00\x00\x00\x00",
    ],
    ids=["folder", "empty", "odd id", "no id", "beyond the end", "number without an end", "field of another kind"],
)
def test_block_that_is_no_part_of_a_file_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        read_unixfs_block(Cid("dag-pb", hashlib.sha256(raw).digest()), raw)
