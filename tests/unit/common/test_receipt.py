import json
from collections.abc import Iterator
from typing import Any

import pytest

from common.box import SecretKey
from common.cid import cid_of
from common.envelope import ResultBody
from common.messages.tabs import TabKey, TabVoucher
from common.receipt import ReceiptMarket, verify_receipt
from common.receipt_tab import build_tab_member, tab_facts
from common.refusal import Refused
from common.sealed_result import seal_result
from common.secp256k1 import Wallet
from common.tab.messages import SignedVoucher
from common.tab.terms import Exchange, TabDelegation
from common.tab.transcript import TabOrder, Transcript, hash_exchange_chain
from tests.vectors.vector_file import cases

CASES = cases("receipt.json")
SETTLED = json.loads(CASES[0]["receipt"])

# Fields that show a change in another place. A signing domain shows in the signatures made in it. The position of a log
# or a block shows in what is found at that position.
SHOWS = {
    "market.chain_id": "order_signature",
    "market.token": "payment.signature",
    "market.token_name": "payment.signature",
    "market.token_version": "payment.signature",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_receipt_proves_itself_or_names_the_field_at_fault(case: dict[str, Any]) -> None:
    raw = case["receipt"].encode()
    if "refused" in case:
        with pytest.raises(Refused) as refused:
            verify_receipt(raw)
        assert refused.value.param == case["refused"]
        return
    proved = verify_receipt(raw)
    said = json.loads(raw)
    assert "0x" + proved.job_id.hex() == said["job_id"]
    assert ["0x" + block.hash.hex() for block in proved.blocks] == [step["block"] for step in said["steps"]]
    assert {fact.name: fact.value for fact in proved.facts}["owner"] == said["owner"]


def leaves(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*at, key))
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from leaves(each, (*at, n))
    else:
        yield at


def changed(at: tuple[str | int, ...], new: Any) -> bytes:
    document = json.loads(CASES[0]["receipt"])
    *path, last = at
    place = document
    for key in path:
        place = place[key]
    place[last] = new
    return json.dumps(document).encode()


def others(value: Any) -> list[Any]:
    """Return values close to this one: with a digit changed at the front, middle and end, one larger, and None."""
    text = str(value)
    if isinstance(value, int):
        return [value + 1, text, None]
    places = {2 if text.startswith("0x") else 0, len(text) // 2, len(text) - 1}
    near = [text[:n] + ("1" if text[n] == "0" else "0") + text[n + 1 :] for n in sorted(places)]
    return [*near, text + "00", "", None]


@pytest.mark.parametrize("at", list(leaves(SETTLED)), ids=lambda at: ".".join(map(str, at)))
def test_each_field_that_is_changed_is_refused_by_its_name(at: tuple[str | int, ...]) -> None:
    name = ".".join(map(str, at))
    value = SETTLED
    for key in at:
        value = value[key]  # type: ignore[index,call-overload]
    for new in others(value):
        with pytest.raises(Refused) as refused:
            verify_receipt(changed(at, new))
        named = refused.value.param or ""
        if at[0] == "steps":  # a step is valid only as a whole
            assert named.startswith("steps") or named == "market.job_registry", (name, new, named)
        else:
            assert named in {name, SHOWS.get(name), ".".join(map(str, at[:-1]))}, (name, new, named)


@pytest.mark.parametrize("key", sorted(SETTLED))
def test_field_that_is_missing_and_one_too_many_are_refused(key: str) -> None:
    without = {name: value for name, value in SETTLED.items() if name != key}
    for document in (without, SETTLED | {key + "_": 1}):
        with pytest.raises(Refused):
            verify_receipt(json.dumps(document).encode())


def test_every_bit_of_a_proof_counts() -> None:
    nodes = SETTLED["steps"][1]["receipt_proof"]
    for n, node in enumerate(nodes):
        raw = bytearray.fromhex(node[2:])
        for at in range(0, len(raw), 7):
            raw[at] ^= 1
            with pytest.raises(Refused):
                verify_receipt(changed(("steps", 1, "receipt_proof", n), "0x" + raw.hex()))
            raw[at] ^= 1


REGISTRY, JOB_ID, RESULT_KEY = b"\x11" * 20, b"\x07" * 32, SecretKey(b"\x05" * 32)
MARKET = ReceiptMarket(31337, REGISTRY, b"\x14" * 20, "Dev Dollar", "1")
OWNER, KEY = Wallet(bytes(31) + b"\x01"), Wallet(bytes(31) + b"\x02")


def sealed() -> bytes:
    exchanges = (Exchange(1, bytes(32), "out", {}, 0, 5),)
    chain = hash_exchange_chain(JOB_ID, exchanges)
    voucher = TabVoucher(JOB_ID, 3, 20, 5, chain)
    signed = SignedVoucher(3, 20, 5, chain, KEY.sign(MARKET.tabs.digest(voucher)))
    delegated = OWNER.sign(MARKET.tabs.digest(TabKey(KEY.address, 7, 99)))
    transcript = Transcript("idle", exchanges, signed, TabDelegation(KEY.address, 99, delegated))
    body = ResultBody(JOB_ID, transcript.output(), {}).encode()
    return seal_result(RESULT_KEY.public, 31337, REGISTRY, JOB_ID, body)


def facts(member: Any, content: bytes, completion_tok: int = 5) -> dict[str, str]:
    order = TabOrder(JOB_ID, OWNER.address, 7, 1, 2, completion_tok)
    return {name: value for name, value, _ in tab_facts(member, 31337, REGISTRY, str(cid_of(content)), order, MARKET)}


def test_correct_settle_is_proved() -> None:
    content = sealed()
    proved = facts(build_tab_member(content, (SecretKey(b"\x06" * 32), RESULT_KEY)), content)
    assert proved["verdict"] == "charged as acknowledged"
    assert proved["allowed"] == "20 units, 5 acknowledged"
    assert proved["delivered"] == "1 answers"


def test_overcharge_is_proved() -> None:
    content = sealed()
    assert facts(build_tab_member(content, (RESULT_KEY,)), content, 6)["verdict"].startswith("overcharged")


def test_another_transcript_or_seed_is_refused() -> None:
    content = sealed()
    member = build_tab_member(content, (RESULT_KEY,))
    for wrong, settled in ((member, sealed()), ({**member, "seed": "0x" + "00" * 32}, content), ({}, content)):
        with pytest.raises(Refused):
            facts(wrong, settled)
