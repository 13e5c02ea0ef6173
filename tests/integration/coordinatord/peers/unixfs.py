"""Compare our content ids with those of ipfs-unixfs-importer, for plain files and for files uploaded to a
coordinator."""

import base64
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from common.cid import Cid, ImportProfile, cid_of, parse_cid
from common.unixfs_blocks import read_unixfs_block
from tests.integration.coordinatord.peers.conftest import ROOT, Served
from tests.integration.coordinatord.scene.party import Party

DEFAULT: Final = ImportProfile()
# Nodes with few links, so that a file of some hundred bytes has several layers.
NARROW: Final = (ImportProfile(1, 2), ImportProfile(4, 2), ImportProfile(5, 3), ImportProfile(64, 174))
Import = Callable[[bytes, int, int], dict[str, Any]]


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[Import]:
    command = (shutil.which("node") or "node", str(ROOT / "tests" / "peers" / "node" / "import.mjs"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        sent, told = process.stdin, process.stdout
        assert sent is not None
        assert told is not None

        def ask(content: bytes, chunk_size: int, width: int) -> dict[str, Any]:
            path = tmp_path / "file"
            path.write_bytes(content)
            sent.write(json.dumps({"path": str(path), "chunk_size": chunk_size, "width": width}) + "\n")
            sent.flush()
            answer: dict[str, Any] = json.loads(told.readline())
            return answer

        yield ask
        sent.close()


def _sizes(profile: ImportProfile, draw: random.Random) -> set[int]:
    """Yield sizes: empty, one byte, the edges of a leaf and of every layer, and random ones."""
    sizes, layer = {0, 1}, profile.chunk_size
    while layer <= 300 * profile.chunk_size:
        sizes |= {layer - 1, layer, layer + 1}
        layer *= profile.width
    return sizes | {draw.randrange(300 * profile.chunk_size) for _ in range(10)}


def _read_back(root: str, blocks: dict[str, str]) -> bytes:
    def below(cid: Cid) -> Iterator[bytes]:
        block = read_unixfs_block(cid, base64.b64decode(blocks[str(cid)]))
        yield block.content
        for link in block.links:
            yield from below(link)

    return b"".join(below(parse_cid(root, "root")))


def test_files_have_the_same_id_and_read_back(imported: Import, held: Callable[[str], None]) -> None:
    draw = random.Random(22)
    files = 0
    for profile in NARROW:
        for size in sorted(_sizes(profile, draw)):
            content = draw.randbytes(size)
            theirs = imported(content, profile.chunk_size, profile.width)
            assert theirs["cid"] == str(cid_of(content, profile)), (profile, size)
            assert _read_back(theirs["cid"], theirs["blocks"]) == content
            files += 1
    for size in (0, 1, DEFAULT.chunk_size - 1, DEFAULT.chunk_size, DEFAULT.chunk_size + 1, 3 * DEFAULT.chunk_size + 7):
        content = draw.randbytes(size)
        theirs = imported(content, DEFAULT.chunk_size, DEFAULT.width)
        assert theirs["cid"] == str(cid_of(content)), size
        assert _read_back(theirs["cid"], theirs["blocks"]) == content
        files += 1
    held(f"ids of {files} files, each read back from the importer's blocks")


def test_importer_blocks_are_verified_and_changes_rejected(imported: Import) -> None:
    """A gateway's owner may import with any profile. A file is verified by its tree."""
    content = random.Random(22).randbytes(600_000)
    theirs = imported(content, 0, 0)
    assert len(theirs["blocks"]) > 1
    assert _read_back(theirs["cid"], theirs["blocks"]) == content
    for cid, block in theirs["blocks"].items():
        changed = bytearray(base64.b64decode(block))
        changed[-1] ^= 1
        with pytest.raises(Exception, match="the bytes do not match block"):
            _read_back(theirs["cid"], {**theirs["blocks"], cid: base64.b64encode(changed).decode()})


async def test_upload_is_given_the_id_that_the_importer_gives_it(
    served: Served, owner: Party, imported: Import, held: Callable[[str], None]
) -> None:
    await owner.sign_in()
    for size in (200, DEFAULT.chunk_size, 2 * DEFAULT.chunk_size + 1):
        content = b"\x01" + random.Random(size).randbytes(size - 1)  # starts like a container
        uploaded = await owner.upload("input", content)
        assert uploaded.status_code == 200, uploaded.text
        theirs = imported(content, DEFAULT.chunk_size, DEFAULT.width)
        assert uploaded.json()["svc"]["cid"] == theirs["cid"]
    held("and of uploads to a coordinator")
