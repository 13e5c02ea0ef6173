"""Verification of an escrow's key before anything is sealed to it. The holder of the key can open every open order.

The evidence must be for this key (`report_data`), of an accepted kind, and not of a debug build. This binds evidence to
key and proves no more: anyone can compute static evidence, and the operator of the coordinator holds the key. The
client must know whose key it is, from a pin or from its first use.
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
    """What a client accepts. `pinned`: keys as 64 hex digits; with any, no other key is taken.

    `allow_mock` takes the evidence of a development escrow, `allow_debug` that of a debug build. Whoever runs such
    a one can read what is sealed to it: both are for tests.
    """

    pinned: Collection[str] = ()
    allow_mock: bool = False
    allow_debug: bool = False


def verified_key(answer: EscrowKey, trust: EscrowTrust) -> PublicKey:
    """The key, or EscrowUntrusted with a code that says why not."""
    try:
        public = PublicKey(read_bare_hex(answer.escrow_public_key, 32, "escrow_public_key"))
        bound_to = read_bare_hex(answer.evidence.report_data, 32, "evidence.report_data")
    except Refused as refusal:
        raise EscrowUntrusted(f"the escrow's answer is malformed: {refusal}", code="escrow_malformed") from None
    if bound_to != escrow_evidence.report_data(public):
        raise EscrowUntrusted("the escrow's evidence is for another key", code="escrow_binding")
    if answer.evidence.debug and not trust.allow_debug:
        raise EscrowUntrusted("the escrow runs a debug build", code="escrow_debug")
    if answer.evidence.type == escrow_evidence.MOCK:
        if not trust.allow_mock:
            raise EscrowUntrusted("the escrow is a development mock", code="escrow_mock")
    elif answer.evidence.type != escrow_evidence.STATIC:
        raise EscrowUntrusted(f"evidence of type {answer.evidence.type!r} is not known", code="escrow_malformed")
    if trust.pinned and public.raw.hex() not in {pin.lower().removeprefix("0x") for pin in trust.pinned}:
        raise EscrowUntrusted("the escrow's key is not one of the pinned ones", code="escrow_not_pinned")
    return public
