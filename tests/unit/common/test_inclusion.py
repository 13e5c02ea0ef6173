from typing import Any

import pytest
import rlp as library
from hypothesis import given
from hypothesis import strategies as st

from common.inclusion import rlp
from common.inclusion.contents import BlockContents, build_trie, encode_receipt, encode_transaction, read_receipt
from common.inclusion.header import encode_header, read_header
from common.inclusion.node_values import read_quantity
from common.inclusion.trie import EMPTY_ROOT, Trie, verify_proof
from common.refusal import Refused
from common.scalars import hex_of
from tests.vectors.vector_file import cases

CASES = cases("block_contents.json")
SENT = [case["transaction"] for case in CASES if "transaction" in case and "refused" not in case]
RECEIPTS = [case["receipt"] for case in CASES if "receipt" in case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_node_json_becomes_block_bytes_or_names_the_bad_field(case: dict[str, Any]) -> None:
    encode, told = (
        (encode_transaction, case["transaction"]) if "transaction" in case else (encode_receipt, case["receipt"])
    )
    if "refused" in case:
        with pytest.raises(Refused) as refused:
            encode(told)
        assert refused.value.param == case["refused"]
        return
    raw = encode(told)
    assert hex_of(raw) == case["raw"]
    if "receipt" in case:
        read = read_receipt(raw)
        assert read.succeeded == (told.get("status") == "0x1")
        assert [hex_of(log.address) for log in read.logs] == [log["address"] for log in told["logs"]]


def test_parity_is_read_from_v_without_y_parity() -> None:
    for sent in SENT:
        assert encode_transaction({name: value for name, value in sent.items() if name != "yParity"})


def test_block_of_all_types_matches_both_roots() -> None:
    receipts = [*RECEIPTS, *RECEIPTS[: len(SENT) - len(RECEIPTS)]]
    sent_root = build_trie([encode_transaction(each) for each in SENT]).root
    told_root = build_trie([encode_receipt(each) for each in receipts]).root
    block = {"transactions": SENT, "transactionsRoot": hex_of(sent_root), "receiptsRoot": hex_of(told_root)}
    assert len(BlockContents.of(block, receipts).transactions) == len(SENT) == 8
    for name, other in (
        ("transactionsRoot", block | {"transactions": SENT[::-1]}),
        ("receiptsRoot", block | {"receiptsRoot": hex_of(sent_root)}),
    ):
        with pytest.raises(Refused) as refused:
            BlockContents.of(other, receipts)
        assert refused.value.param == name


@pytest.mark.parametrize("value", ["0x-1", "0x", "0x1_0", "0x+1", "0x 1", "1", 1, None, "0x" + "1" * 65, "0x\u0661"])
def test_quantity_that_is_not_plain_hex_is_refused(value: object) -> None:
    with pytest.raises(Refused):
        read_quantity({"value": value}, "value")


# The first block of Ethereum's main network, as nodes return it.
GENESIS = {
    "hash": "0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3",
    "parentHash": "0x" + "00" * 32,
    "sha3Uncles": "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347",
    "miner": "0x" + "00" * 20,
    "stateRoot": "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544",
    "transactionsRoot": "0x" + EMPTY_ROOT.hex(),
    "receiptsRoot": "0x" + EMPTY_ROOT.hex(),
    "logsBloom": "0x" + "00" * 256,
    "difficulty": "0x400000000",
    "number": "0x0",
    "gasLimit": "0x1388",
    "gasUsed": "0x0",
    "timestamp": "0x0",
    "extraData": "0x11bbe8db4e347b4e8c937c1c8370e4b5ed33adb3db69cbdb7a38e1e50b1b82fa",
    "mixHash": "0x" + "00" * 32,
    "nonce": "0x0000000000000042",
}


def test_header_of_the_main_networks_first_block_has_its_hash() -> None:
    header = read_header(encode_header(GENESIS))
    assert "0x" + header.hash.hex() == GENESIS["hash"]
    assert (header.number, header.receipts_root) == (0, EMPTY_ROOT)


def test_block_whose_fields_do_not_make_its_hash_is_refused() -> None:
    with pytest.raises(Refused, match="does not match its header"):
        encode_header(GENESIS | {"gasUsed": "0x1"})


ITEMS = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=6), max_leaves=20)


@given(ITEMS)
def test_items_are_encoded_as_the_library_does_and_read_back(item: rlp.Item) -> None:
    encoded = rlp.encode(item)
    assert encoded == library.encode(item)
    assert rlp.decode(encoded) == item


@pytest.mark.parametrize(
    "encoded",
    ["", "8100", "b800", "b90000", "b80100", "c1", "8261", "6161", "f800", "c180ff", "bfffffffffffffffff", "c1" * 40],
)
def test_another_spelling_or_a_torn_one_is_refused(encoded: str) -> None:
    with pytest.raises(Refused):
        rlp.decode(bytes.fromhex(encoded))


@given(st.binary(max_size=40))
def test_rlp_round_trips(raw: bytes) -> None:
    try:
        item = rlp.decode(raw)
    except Refused:
        return
    assert rlp.encode(item) == raw


@pytest.mark.parametrize(
    ("values", "root"),
    [
        ({}, "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"),
        (
            {b"doe": b"reindeer", b"dog": b"puppy", b"dogglesworth": b"cat"},
            "8aad789dff2f538bca5d8ea56e8abe10f4c7ba3a5dea95fea4cd6e7c3a1168d3",
        ),
    ],
    ids=["empty", "one key within another"],
)
def test_root_is_as_ethereums_own_tests_have_it(values: dict[bytes, bytes], root: str) -> None:
    assert Trie(values).root.hex() == root
    assert EMPTY_ROOT.hex().startswith("56e8")


@given(st.dictionaries(st.binary(max_size=4), st.binary(min_size=1, max_size=60), min_size=1, max_size=40))
def test_every_value_is_proved_under_its_root_only(values: dict[bytes, bytes]) -> None:
    trie = Trie(values)
    for key, value in values.items():
        assert verify_proof(trie.root, key, trie.proof(key)) == value
        with pytest.raises(Refused):
            verify_proof(trie.root, key + b"\0\0\0\0\0", trie.proof(key))
        with pytest.raises(Refused):
            verify_proof(trie.root, key, [*trie.proof(key), b"\xc0"])
        with pytest.raises(Refused):
            verify_proof(trie.root, key, trie.proof(key)[:-1])
