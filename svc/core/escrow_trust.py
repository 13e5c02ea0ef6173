"""Verify an escrow's key before anything is sealed to the key.

The holder of the key can read every open order. The evidence must be for this key (`report_data`), of an accepted kind,
and not of a debug build. The evidence does not prove who holds the key, because anyone can compute static evidence. So
the client also compares the key with a pinned key, or with the key of the first use.
"""

from collections.abc import Collection

import attrs

from common import escrow_evidence
from common.box import PublicKey
from common.refusal import Refused
from common.scalars import read_bare_hex
from svc.errors import EscrowUntrusted
from svc.records import EscrowKey


@attrs.frozen(slots=True)
class EscrowTrust:
    """Accepted escrows. `pinned_keys`: accepted keys as 64 hex digits; if empty, any key is accepted.

    `allow_mock` accepts a development escrow, and `allow_debug` accepts a debug build. Use both only in tests, because
    the operators of such escrows can read open orders.
    """

    pinned_keys: Collection[str] = ()
    allow_mock: bool = False
    allow_debug: bool = False


def verify_escrow_key(answer: EscrowKey, trust: EscrowTrust) -> PublicKey:
    """Return the escrow's key after checking its evidence and the pins. Raises EscrowUntrusted with a code."""
    try:
        public = PublicKey(read_bare_hex(answer.escrow_public_key, 32, "escrow_public_key"))
        bound_to = read_bare_hex(answer.evidence.report_data, 32, "evidence.report_data")
    except Refused as refusal:
        raise EscrowUntrusted(f"the escrow's answer is malformed: {refusal}", code="escrow_malformed") from None
    if bound_to != escrow_evidence.report_data(public):
        raise EscrowUntrusted("the escrow's evidence is for another key", code="escrow_binding")
    if answer.evidence.debug and not trust.allow_debug:
        raise EscrowUntrusted("the escrow runs a debug build, whose operator can read open orders", code="escrow_debug")
    if answer.evidence.type == escrow_evidence.MOCK_EVIDENCE_TYPE:
        if not trust.allow_mock:
            raise EscrowUntrusted(
                "the escrow is a development escrow, whose operator can read open orders", code="escrow_mock"
            )
    elif answer.evidence.type != escrow_evidence.STATIC_EVIDENCE_TYPE:
        raise EscrowUntrusted(
            f"the escrow's evidence has the unknown type {answer.evidence.type!r}", code="escrow_malformed"
        )
    if trust.pinned_keys and public.raw.hex() not in {pin.lower().removeprefix("0x") for pin in trust.pinned_keys}:
        raise EscrowUntrusted(f"the escrow's key {public.raw.hex()} is not a pinned key", code="escrow_not_pinned")
    return public
