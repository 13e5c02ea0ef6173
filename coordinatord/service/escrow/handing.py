"""POST /handover, as the holder of keys answers it.

Checked in the specification's order, which is also that of cost: everything that is in the request itself, then the
operator's signature, and the chain's allowlist last.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import attrs

from common import escrow_evidence
from common.box import PublicKey
from common.escrow_evidence import report_data
from common.handover import HandedKey, content
from common.messages.escrow import HandoverAuth, HandoverKeys
from coordinatord.chain.provider_registry import NOT_LISTED, TOMBSTONED, ProviderRegistry
from coordinatord.fields import UINT64, BareHex, Boolean, Choice, Nested, Text, Uint, wire
from coordinatord.service.escrow.body_kinds import AnySignature, SealingKey
from coordinatord.service.escrow.generations import Generation
from coordinatord.service.escrow.key_material import seal_secret, wipe
from coordinatord.service.escrow.operators import Operators
from coordinatord.service.escrow.unminted import unminted
from coordinatord.service.windows import ISSUED_WITHIN, Clock, is_fresh


@attrs.frozen(slots=True)
class PeerEvidence:
    type: str = wire(Choice((escrow_evidence.MOCK,)))
    report_data: bytes = wire(BareHex(32), "of channel_pubkey, made as that of an escrow's key")
    debug: bool = wire(Boolean())
    release: int = wire(Uint(16))
    measurement: bytes = wire(BareHex(32), "the key of its entry in the allowlist")
    tcb: str = wire(Text(256))
    quote: str = wire(Text(2048))


@attrs.frozen(slots=True)
class HandoverBody:
    evidence: PeerEvidence = wire(Nested(PeerEvidence), "of the instance that asks")
    channel_pubkey: PublicKey = wire(SealingKey(), "the X25519 key that the keys are sealed to")
    issued_at: int = wire(UINT64, f"Unix seconds, within ±{ISSUED_WITHIN} of the holder's clock")
    operator_signature: bytes = wire(AnySignature(), "HandoverAuth, by an operator key that the holder accepts")


Reason = Literal[
    "stale_issued_at",
    "bad_binding",
    "debug_evidence",
    "stale_release",
    "bad_operator_signature",
    "operator_not_authorized",
    "not_allowlisted",
    "tombstoned",
]


@attrs.frozen(slots=True)
class HandedOver:
    keys_sealed: bytes
    key_count: int
    holder_release: int


@attrs.frozen(slots=True)
class NotHandedOver:
    reason: Reason
    message: str


Outcome: TypeAlias = HandedOver | NotHandedOver


@attrs.frozen(slots=True)
class Handing:
    operators: Operators
    providers: ProviderRegistry
    held: Callable[[], tuple[Generation, ...]]
    release: int
    clock: Clock

    async def hand_over(self, body: HandoverBody) -> Outcome:
        """Raises Retryable while the allowlist cannot be read, and while there is nothing to hand over."""
        refusal = self._refusal(body)
        if refusal is not None:
            return refusal
        status = await self.providers.allowlist_status(body.evidence.measurement)
        if status == TOMBSTONED:
            return NotHandedOver("tombstoned", "this measurement is withdrawn")
        if status == NOT_LISTED:
            return NotHandedOver("not_allowlisted", "this measurement is not on the allowlist")
        generations = self.held()
        if not generations:
            raise unminted()
        return self._sealed(body, generations)

    def _refusal(self, body: HandoverBody) -> NotHandedOver | None:
        """What can be told without the chain."""
        if not is_fresh(body.issued_at, self.clock()):
            return NotHandedOver("stale_issued_at", f"issued_at is not within ±{ISSUED_WITHIN} seconds of now")
        if body.evidence.report_data != report_data(body.channel_pubkey):
            return NotHandedOver("bad_binding", "the evidence was not made for this channel")
        if body.evidence.debug:
            return NotHandedOver("debug_evidence", "an instance that can be looked into gets no keys")
        if body.evidence.release < self.release:
            return NotHandedOver("stale_release", f"the holder is at release {self.release}")
        auth = HandoverAuth(body.channel_pubkey.raw, body.issued_at)
        signer = self.operators.signer(auth, body.operator_signature)
        if signer is None:
            return NotHandedOver("bad_operator_signature", "operator_signature is not a signature")
        if signer not in self.operators.addresses:
            return NotHandedOver("operator_not_authorized", "the signer is no operator of this escrow")
        return None

    def _sealed(self, body: HandoverBody, generations: tuple[Generation, ...]) -> HandedOver:
        keys = [HandedKey(one.key.copy_secret(), one.announced_from) for one in generations]
        signed = content(self.release, keys)
        message = bytearray(len(signed) + 65)
        try:
            message[: len(signed)] = signed
            answers_for = HandoverKeys(body.channel_pubkey.raw, body.issued_at, signed)
            message[len(signed) :] = self.operators.sign(answers_for)
            return HandedOver(seal_secret(body.channel_pubkey, message), len(keys), self.release)
        finally:
            for secret in (signed, message, *(key.secret for key in keys)):
                wipe(secret)
