from typing import Final

import attrs
import pytest
from eth_account import Account

from common.domains import Domains
from common.messages.tabs import TabKey
from common.refusal import Refused
from common.tab.messages import SignedVoucher
from common.tab.terms import Exchange, TabDelegation, TabTotals, input_digest
from common.tab.transcript import TabOrder, Transcript, hash_exchange_chain, sum_exchange_units
from tests.unit.common.tab_scene import DOMAINS, sign

WALLET: Final = Account.create()
TAB_KEY: Final = Account.create()
JOB_ID: Final = b"j" * 32
EXCHANGES: Final = (
    Exchange(1, input_digest({"messages": []}), {"text": "one"}, {"completion_tokens": 3}, 10, 3),
    Exchange(2, input_digest({"messages": [1]}), {"text": "two"}, {}, 7, 4),
)
# Rates 1 and 2: ⌈17 · 1 / 2⌉ input units as output, and 7 output units.
ORDER: Final = TabOrder(JOB_ID, bytes.fromhex(WALLET.address[2:]), 3, 1, 2, 16)


def transcript(domains: Domains = DOMAINS) -> Transcript:
    key = bytes.fromhex(TAB_KEY.address[2:])
    delegation = sign(WALLET, domains.tabs.digest(TabKey(key, 3, 1000)))
    voucher = SignedVoucher(4, 30, 16, hash_exchange_chain(JOB_ID, EXCHANGES), b"")
    signature = sign(TAB_KEY, domains.tabs.digest(voucher.message(JOB_ID)))
    return Transcript(
        "idle", EXCHANGES, attrs.evolve(voucher, signature=signature), TabDelegation(key, 1000, delegation)
    )


def test_transcript_is_read_back_and_proves_the_charge() -> None:
    written = transcript()
    assert Transcript.read(written.output()) == written
    assert written.acknowledged_units == 16
    assert written.find_fault(ORDER, DOMAINS) is None
    assert (
        attrs.evolve(written, exchanges=(), voucher=None).find_fault(attrs.evolve(ORDER, completion_tok=0), DOMAINS)
        is None
    )


def test_input_is_charged_at_the_ratio_of_the_rates() -> None:
    assert sum_exchange_units(EXCHANGES) == TabTotals(17, 7)
    assert sum_exchange_units(EXCHANGES).charged_units(1, 2) == 16
    assert sum_exchange_units(EXCHANGES).charged_units(0, 2) == 7


def test_units_above_an_order_are_refused() -> None:
    with pytest.raises(Refused, match="units_out"):
        TabTotals(0, 2**32).charged_units(0, 1)
