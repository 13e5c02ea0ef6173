from typing import Any

import pytest

from common.inclusion.contents import BlockContents, build_trie, encode_receipt, encode_transaction, read_receipt
from common.inclusion.node_values import read_quantity
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
