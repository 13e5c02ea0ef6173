"""A receipt's transcript belongs to its settle, and shows an overcharge."""

from typing import Any

import pytest

from common.box import SecretKey
from common.cid import cid_of
from common.envelope import ResultBody
from common.messages.tabs import TabKey, TabVoucher
from common.receipt import ReceiptMarket
from common.receipt_tab import build_tab_member, tab_facts
from common.refusal import Refused
from common.sealed_result import seal_result
from common.secp256k1 import Wallet
from common.tab.messages import SignedVoucher
from common.tab.terms import Exchange, TabDelegation
from common.tab.transcript import TabOrder, Transcript, hash_exchange_chain

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
