from typing import Any

import pytest

from common.box import SecretKey
from common.escrow_evidence import report_data
from svc.core.escrow_trust import EscrowTrust, verify_escrow_key
from svc.errors import EscrowUntrusted
from svc.records import EscrowKey, Evidence

KEY = SecretKey(bytes(range(32))).public
OTHER = SecretKey(bytes(range(1, 33))).public


def answer(key: str = KEY.raw.hex(), **changed: Any) -> EscrowKey:
    said = {"type": "static-coordinator-v1", "report_data": report_data(KEY).hex(), "debug": False, "release": 1}
    return EscrowKey(key, Evidence(**said | changed), 1_700_000_000)


@pytest.mark.parametrize(
    ("said", "trust"),
    [
        (answer(), EscrowTrust()),
        (answer(), EscrowTrust(pinned_keys=[OTHER.raw.hex(), "0x" + KEY.raw.hex().upper()])),
        (answer(type="mock-coordinator-v1"), EscrowTrust(allow_mock=True)),
        (answer(debug=True), EscrowTrust(allow_debug=True)),
    ],
)
def test_key_that_is_trusted_is_returned(said: EscrowKey, trust: EscrowTrust) -> None:
    assert verify_escrow_key(said, trust) == KEY


@pytest.mark.parametrize(
    ("said", "trust", "code"),
    [
        (answer(key=OTHER.raw.hex()), EscrowTrust(), "escrow_binding"),
        (answer(report_data=report_data(OTHER).hex()), EscrowTrust(), "escrow_binding"),
        (answer(debug=True), EscrowTrust(allow_mock=True), "escrow_debug"),
        (answer(type="mock-coordinator-v1"), EscrowTrust(allow_debug=True), "escrow_mock"),
        (answer(), EscrowTrust(pinned_keys=[OTHER.raw.hex()]), "escrow_not_pinned"),
        (answer(type="static-coordinator-v2"), EscrowTrust(), "escrow_malformed"),
        (answer(key="0x" + KEY.raw.hex()), EscrowTrust(), "escrow_malformed"),
        (answer(key="00" * 32), EscrowTrust(), "escrow_malformed"),
        (answer(report_data="beef"), EscrowTrust(), "escrow_malformed"),
    ],
)
def test_key_that_is_not_trusted_is_refused_with_its_reason(said: EscrowKey, trust: EscrowTrust, code: str) -> None:
    with pytest.raises(EscrowUntrusted) as refused:
        verify_escrow_key(said, trust)
    assert refused.value.code == code
