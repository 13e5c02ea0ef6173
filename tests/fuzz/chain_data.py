"""Data from a node: ABI words, logs of the registries, RLP, headers, receipts, blocks of files."""

import hashlib
from typing import Any, Final

import eth_abi
import msgspec
import rlp as peer
from rlp.exceptions import DecodingError as PeerRefusal

from common import abi
from common.address_book import AddressBook, TokenDomain
from common.artifacts import decode_error_name, event_topic, load_artifact
from common.cid import Cid, ImportProfile, UnixFsHasher, _encode_node, _Link, cid_of, read_binary_cid
from common.contract_events import event_values
from common.inclusion import rlp
from common.inclusion.contents import read_receipt
from common.inclusion.header import read_header
from common.inclusion.trie import verify_proof
from common.keccak import keccak256
from common.receipt import verify_receipt
from common.refusal import Refused
from common.unixfs_blocks import read_unixfs_block
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.contracts.relayed_calls import ReceiptLog, find_refused_calls
from coordinatord.chain.rpc.chain_data import ChainLog
from tests.fuzz.sealed import _cases
from tests.fuzz.target import Target, cut, refused

_TYPES: Final = ("uint64", "bytes", "string", "(uint256,address)[]", "bool", "bytes32", "address")
_HEAD: Final = len(_TYPES)  # words, one per type


def _read_abi(data: bytes) -> tuple[Any, ...]:
    rows = [(abi.uint_at(row, 0), "0x" + abi.address_at(row, 1).hex()) for row in abi.rows_at(data, 3, 2, _HEAD)]
    return (
        abi.uint_at(data, 0, 64),
        abi.bytes_at(data, 1, _HEAD),
        abi.text_at(data, 2, _HEAD),
        tuple(rows),
        abi.boolean_at(data, 4),
        abi.bytes32_at(data, 5),
        "0x" + abi.address_at(data, 6).hex(),
    )


def check_abi(data: bytes) -> None:
    """Check that we read the same as eth_abi, and that writing and reading again gives the same value."""
    read = refused(lambda: _read_abi(data))
    if read is not None:
        assert read == eth_abi.decode(_TYPES, data)
        rows = [abi.static_struct((abi.uint(n), abi.address(bytes.fromhex(address[2:])))) for n, address in read[3]]
        written = abi.encode(
            abi.uint(read[0]), abi.dynamic_bytes(read[1]), abi.dynamic_string(read[2]), abi.array(rows),
            abi.boolean(read[4]), abi.bytes32(read[5]), abi.address(bytes.fromhex(read[6][2:])),
        )  # fmt: skip
        assert written == eth_abi.encode(_TYPES, read)
        assert _read_abi(written) == read
    decode_error_name(data)


_BOOK: Final = AddressBook(1, 0, b"\1" * 20, b"\2" * 20, b"\3" * 20, b"\4" * 20, 6, TokenDomain("Dollar", "1"))
_DECODER: Final = LogDecoder(_BOOK)
_REGISTRIES: Final = tuple(map(load_artifact, ("JobRegistry", "ProviderRegistry", "AskRegistry")))
_EVENTS: Final = [
    (place, artifact, entry["name"], event_topic(artifact, entry["name"]))
    for place, artifact in enumerate(_REGISTRIES)
    for entry in artifact.abi
    if entry["type"] == "event"
]


def check_logs(data: bytes) -> None:
    """Check that both log decoders, of the index and of proofs, agree."""
    if len(data) < 2:
        return
    place, artifact, name, topic = _EVENTS[data[0] % len(_EVENTS)]
    count, words = data[1] & 3, data[2:]
    topics = [topic, *(words[32 * n : 32 * n + 32].ljust(32, b"\0") for n in range(count))]
    content = words[32 * count :]
    log = ChainLog(
        address=_DECODER.addresses[place],
        topics=tuple("0x" + each.hex() for each in topics),
        data="0x" + content.hex(),
        block_number="0x1",
        block_hash="0x" + bytes(32).hex(),
        log_index="0x0",
    )
    try:
        found = _DECODER.decode(log)
    except Refused:
        found = None
    told = refused(lambda: event_values(artifact, name, topics, content))
    if found is not None and told is not None:
        mine = list(msgspec.structs.asdict(found).values())
        theirs = [_plain(value) for value in told.values()]
        assert [_plain(value) for value in mine] == theirs or any(isinstance(value, tuple | list) for value in mine), (
            mine,
            theirs,
        )
    receipt = ReceiptLog(log.address, list(log.topics), log.data)
    assert find_refused_calls([receipt], b"\1" * 20).keys() <= {int(each, 16) for each in log.topics[1:]}


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    return bytes(value) if isinstance(value, bytes | bytearray) else value


def _deep(item: object) -> int:
    return 1 + max(map(_deep, item), default=0) if isinstance(item, list | tuple) else 0


def check_rlp(data: bytes) -> None:
    """Check that only the canonical encoding is accepted, and read like Python's Ethereum library."""
    read: list[Any] = []
    refused(lambda: read.append(rlp.decode(data)))
    if read:
        assert rlp.encode(read[0]) == data
    try:
        expected = [peer.decode(data)]
    except (PeerRefusal, RecursionError):
        expected = []
    if read != expected:
        assert not read, (read, expected)
        assert _deep(expected[0]) > 16, expected
    refused(lambda: read_header(data))
    refused(lambda: read_receipt(data))
    nodes = cut(data)
    if nodes:
        refused(lambda: verify_proof(keccak256(nodes[0]), data[:4], nodes))
        refused(lambda: verify_proof(keccak256(data), data[:4], [data]))


def check_receipt(data: bytes) -> None:
    """Check that a modified receipt proves the same as before, or nothing."""
    read = refused(lambda: verify_receipt(data))
    assert read is None or (read.job_id, read.facts, read.blocks) in _proved(), "a receipt that nobody made"


_KNOWN: list[Any] = []


def _proved() -> list[Any]:
    if not _KNOWN:
        for raw in _receipts():
            if (read := refused(lambda raw=raw: verify_receipt(raw))) is not None:
                _KNOWN.append((read.job_id, read.facts, read.blocks))
        assert _KNOWN
    return _KNOWN


def _receipts() -> list[bytes]:
    return [str(case["receipt"]).encode() for case in _cases("receipt.json")]


def check_block(data: bytes) -> None:
    """Check that an inner block names only blocks, and that a file has one id in any encoding."""
    for codec in ("dag-pb", "raw"):
        block = refused(lambda codec=codec: read_unixfs_block(Cid(codec, hashlib.sha256(data).digest()), data))
        if block is not None:
            assert len(block.content) + 34 * len(block.links) <= len(data)
            for link in block.links:
                assert read_binary_cid(link.encode(), "link") == link
    profile = ImportProfile(1 + len(data) % 7, 2 + len(data) % 3)
    hasher = UnixFsHasher(profile)
    for piece in cut(data):
        hasher.update(piece)
    assert hasher.finish() == cid_of(data, profile)


def _blocks() -> list[bytes]:
    leaf = _Link(Cid("raw", bytes(32)), 5, 5)
    return [_encode_node([leaf, leaf], 10), b"\x0a\x09\x08\x02\x12\x03abc\x18\x03", b"\x08" + b"\xff" * 9 + b"\1"]


def _rlps() -> list[bytes]:
    return [
        *(peer.encode(item) for item in (b"", b"a", b"a" * 56, [b"a", [b"", [b"b" * 60]]], [[b"k" * 32] * 17])),
        b"\xb8\x01a", b"\xf8\x00", b"\xc1" * 20, b"\xbf" + b"\xff" * 8,
    ]  # fmt: skip


def _abis() -> list[bytes]:
    values = (7, b"abc", "text", ((1, "0x" + "11" * 20),), True, b"k" * 32, "0x" + "22" * 20)
    return [
        eth_abi.encode(_TYPES, values),
        eth_abi.encode(_TYPES, (7, b"", "", (), False, b"k" * 32, "0x" + "22" * 20)),
    ]


def _logs() -> list[bytes]:
    seeds = []
    for number, (_, artifact, name, _) in enumerate(_EVENTS):
        inputs = next(e["inputs"] for e in artifact.abi if e["type"] == "event" and e["name"] == name)
        indexed = [each for each in inputs if each.get("indexed")]
        bare = [each["type"] for each in inputs if not each.get("indexed")]
        if any("tuple" in kind for kind in bare):
            seeds.append(
                bytes((number, len(indexed)))
                + bytes(32 * len(indexed))
                + abi.encode(abi.array([abi.static_struct([abi.uint(1)] * 4)]))
            )
            continue
        sample = {"bytes": b"xyz", "string": "bafk", "bool": True, "bytes32": b"k" * 32, "address": "0x" + "11" * 20}
        values = [sample.get(kind, 1) if "[" not in kind else [] for kind in bare]
        seeds.append(bytes((number, len(indexed))) + bytes(32 * len(indexed)) + eth_abi.encode(bare, values))
    return seeds


TARGETS: Final = (
    Target("abi", check_abi, _abis, (bytes(31) + b"\x20", bytes(32), b"\xff" * 32)),
    Target("logs", check_logs, _logs, (bytes(31) + b"\x20", bytes(32), b"\xff" * 32)),
    Target("rlp", check_rlp, _rlps),
    Target("receipt", check_receipt, _receipts, (b'"0x', b'"steps"', b'"', b"0"), longest=65_536),
    Target("block", check_block, _blocks),
)
