"""Content ids, of files and as text."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.cid import Cid, ImportProfile, UnixFsHasher, cid_of, dag_pb_leaf_cid, parse_cid, read_store_cid
from common.refusal import Refused
from common.unixfs_blocks import DagBlock, read_unixfs_block
from tests.vectors.vector_file import Case, cases, pattern

CIDS = st.builds(Cid, codec=st.sampled_from(["raw", "dag-pb"]), digest=st.binary(min_size=32, max_size=32))


@pytest.mark.parametrize("case", cases("cid.json"), ids=lambda case: case["name"])
def test_cid_vector(case: Case) -> None:
    if "refused" in case:
        with pytest.raises(Refused) as caught:
            parse_cid(case["text"], "container_cid")
        assert caught.value.param == "container_cid"
        return
    if "text" in case:
        read = parse_cid(case["text"], "container_cid")
        assert (str(read), read.codec, read.digest.hex()) == (case["text"], case["codec"], case["digest"])
        return
    cid = cid_of(pattern(case["length"]), ImportProfile(case["chunk_size"], case["width"]))
    assert str(cid) == case["cid"]
    assert parse_cid(case["cid"], "container_cid") == cid == Cid(case["codec"], bytes.fromhex(case["digest"]))


@given(CIDS)
def test_a_cid_round_trips_as_text(cid: Cid) -> None:
    assert parse_cid(str(cid), "cid") == cid


@given(CIDS, st.integers(0, 58), st.characters(max_codepoint=0x17F))
def test_a_text_that_reads_as_a_cid_is_that_cids_one_spelling(cid: Cid, at: int, character: str) -> None:
    changed = str(cid)[:at] + character + str(cid)[at + 1 :]
    try:
        read = parse_cid(changed, "cid")
    except Refused:
        return
    assert str(read) == changed


@pytest.mark.parametrize("value", [None, 1, b"b" * 59, ["b"]])
def test_non_ascii_cid_is_refused(value: object) -> None:
    with pytest.raises(Refused):
        parse_cid(value, "cid")


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 9), st.integers(2, 4))
def test_the_pieces_do_not_change_the_cid(length: int, size: int, chunk_size: int, width: int) -> None:
    profile = ImportProfile(chunk_size, width)
    hasher = UnixFsHasher(profile)
    for at in range(0, length, size):
        hasher.update(memoryview(pattern(length))[at : at + size])
    assert hasher.finish() == cid_of(pattern(length), profile)


@pytest.mark.parametrize(("chunk_size", "width"), [(0, 2), (1, 1)])
def test_a_profile_that_could_not_end_is_a_bug_of_the_caller(chunk_size: int, width: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        ImportProfile(chunk_size, width)


@pytest.mark.parametrize(
    ("content", "version_0"),
    [
        (b"hello world\n", "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o"),  # the usual example of `ipfs add`
        (b"", "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),
    ],
)
def test_single_chunk_file_has_kubos_id(content: bytes, version_0: str) -> None:
    assert dag_pb_leaf_cid(content) == read_store_cid(version_0, "cid")
    assert str(read_store_cid(version_0, "cid")).startswith("bafybei")


def test_store_s_spellings_name_the_same_block() -> None:
    in_base58 = "zb2rhZfjRh2FHHB2RkHVEvL2vJnCTcu7kwRqgVsf9gpkLgteo"
    assert read_store_cid(in_base58, "cid") == cid_of(b"hello") == read_store_cid(str(cid_of(b"hello")), "cid")


def test_leading_1_of_base58_is_no_second_spelling() -> None:
    """In base58, a leading 1 is a zero byte before the id."""
    in_base58 = "zb2rhZfjRh2FHHB2RkHVEvL2vJnCTcu7kwRqgVsf9gpkLgteo"
    with pytest.raises(Refused, match="cid"):
        read_store_cid(in_base58.replace("zb", "z1b"), "cid")


@pytest.mark.parametrize("text", ["Qm", "Qm" + "0" * 44, "z" * 50, "Q" + "z" * 45, "z", "", None, "bafy"])
def test_text_that_is_no_id_in_any_spelling_is_refused(text: object) -> None:
    with pytest.raises(Refused):
        read_store_cid(text, "cid")


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
