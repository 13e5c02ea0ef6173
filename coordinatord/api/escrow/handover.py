"""POST /handover: hand the escrow keys of this instance over to a peer.

Checks run in the specification's order, from cheap to expensive: the request itself, the operator's signature, the
chain's allowlist.
"""

from collections.abc import Callable
from typing import Literal, Self, TypeAlias

import attrs

from common import box, escrow_evidence
from common.api.fields import UINT64, BareHex, Boolean, Choice, NestedObject, Schema, Text, Uint, body_field
from common.box import PublicKey
from common.daemon.secrets import Secret
from common.domains import Domains
from common.escrow_evidence import report_data
from common.escrow_handover import HandedOverKey, handover_content
from common.messages.escrow import HandoverAuth, HandoverKeys
from common.refusal import Refused
from common.scalars import read_hex
from common.secp256k1 import SIGNATURE_LENGTH, Wallet, recover_address
from coordinatord.api.escrow.custody import no_key_error
from coordinatord.api.escrow.generations import Generation
from coordinatord.api.escrow.keys import seal_secret, wipe
from coordinatord.base.clock import MAX_OP_SKEW_S, Clock, is_fresh
from coordinatord.chain.contracts.provider_registry import NOT_LISTED, TOMBSTONED, ProviderRegistry


@attrs.frozen(slots=True)
class SealingKey:
    """Reads an X25519 public key without 0x. Rejects low-order points, because anyone could open data sealed to
    them."""

    def read(self, value: object, param: str) -> PublicKey:
        try:
            return PublicKey(BareHex(box.KEY_BYTES).read(value, param))
        except Refused as refusal:
            raise Refused(refusal.message, param) from None

    def schema(self) -> Schema:
        return BareHex(box.KEY_BYTES).schema()


@attrs.frozen(slots=True)
class LenientSignature:
    """Reads a signature. A malformed signature reads as b"", which is rejected like the signature of a wrong
    wallet."""

    def read(self, value: object, param: str) -> bytes:
        try:
            return read_hex(value, SIGNATURE_LENGTH, param)
        except Refused:
            return b""

    def schema(self) -> Schema:
        return {"type": "string"}


@attrs.frozen(slots=True)
class OperatorKeys:
    """Operator keys of an instance. The instance signs with the first key and accepts signatures of any of them."""

    domains: Domains
    signing_wallet: Wallet
    addresses: frozenset[bytes]

    @classmethod
    def from_keys(cls, domains: Domains, keys: tuple[Secret, ...]) -> Self:
        wallets = [Wallet(bytes.fromhex(key.reveal())) for key in keys]
        return cls(domains, wallets[0], frozenset(wallet.address for wallet in wallets))

    def sign(self, message: HandoverAuth | HandoverKeys) -> bytes:
        return self.signing_wallet.sign(self.domains.escrow.digest(message))

    def recover_signer(self, message: HandoverAuth | HandoverKeys, signature: bytes) -> bytes | None:
        """Return the address that signed, or None for a malformed signature."""
        return recover_address(self.domains.escrow.digest(message), signature)


@attrs.frozen(slots=True)
class PeerEvidence:
    type: str = body_field(Choice((escrow_evidence.MOCK_EVIDENCE_TYPE,)), "kind of the evidence")
    report_data: bytes = body_field(BareHex(32), "sha256(channel_pubkey ‖ `svc-coordinator-escrow-v1`), hex without 0x")
    debug: bool = body_field(Boolean())
    release: int = body_field(Uint(16))
    measurement: bytes = body_field(BareHex(32))
    tcb: str = body_field(Text(256))
    quote: str = body_field(Text(2048), "base64 of measurement and report_data", example="AAAA")


@attrs.frozen(slots=True)
class HandoverBody:
    evidence: PeerEvidence = body_field(
        NestedObject(PeerEvidence), "evidence of the requester, made for `channel_pubkey`"
    )
    channel_pubkey: PublicKey = body_field(SealingKey())
    issued_at: int = body_field(UINT64, f"signed time in Unix seconds, within {MAX_OP_SKEW_S} s of the holder's clock")
    operator_signature: bytes = body_field(LenientSignature())


HandoverRefusalReason = Literal[
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
class GrantedHandover:
    keys_sealed: bytes
    key_count: int
    holder_release: int


@attrs.frozen(slots=True)
class NotHandedOver:
    reason: HandoverRefusalReason
    message: str


HandoverOutcome: TypeAlias = GrantedHandover | NotHandedOver


@attrs.frozen(slots=True)
class HandoverService:
    operators: OperatorKeys
    providers: ProviderRegistry
    held_generations: Callable[[], tuple[Generation, ...]]
    release_ordinal: int
    clock: Clock

    async def hand_over(self, body: HandoverBody) -> HandoverOutcome:
        """Return the sealed keys or the refusal. Raise Retryable if the allowlist is unreadable or no key is held."""
        refusal = self._find_refusal(body)
        if refusal is not None:
            return refusal
        status = await self.providers.read_allowlist_status(body.evidence.measurement)
        if status == TOMBSTONED:
            return NotHandedOver("tombstoned", "evidence.measurement is withdrawn on the allowlist")
        if status == NOT_LISTED:
            return NotHandedOver("not_allowlisted", "evidence.measurement is not on the allowlist")
        generations = self.held_generations()
        if not generations:
            raise no_key_error()
        return self._seal_generations(body, generations)

    def _find_refusal(self, body: HandoverBody) -> NotHandedOver | None:
        """Return the first refusal that can be decided without reading the chain, or None."""
        if not is_fresh(body.issued_at, self.clock()):
            return NotHandedOver("stale_issued_at", f"issued_at is not within ±{MAX_OP_SKEW_S} seconds of now")
        if body.evidence.report_data != report_data(body.channel_pubkey):
            return NotHandedOver("bad_binding", "evidence.report_data does not match channel_pubkey")
        if body.evidence.debug:
            return NotHandedOver(
                "debug_evidence", "evidence.debug must be false: an instance in debug mode gets no keys"
            )
        if body.evidence.release < self.release_ordinal:
            return NotHandedOver(
                "stale_release", f"evidence.release must be at least {self.release_ordinal}, the release of the holder"
            )
        auth = HandoverAuth(body.channel_pubkey.raw, body.issued_at)
        signer = self.operators.recover_signer(auth, body.operator_signature)
        if signer is None:
            return NotHandedOver(
                "bad_operator_signature", "operator_signature is malformed: no signer can be recovered from it"
            )
        if signer not in self.operators.addresses:
            return NotHandedOver("operator_not_authorized", "the signer is not an operator of this escrow")
        return None

    def _seal_generations(self, body: HandoverBody, generations: tuple[Generation, ...]) -> GrantedHandover:
        keys = [HandedOverKey(one.key.copy_secret(), one.announced_from_ms) for one in generations]
        content = handover_content(self.release_ordinal, keys)
        message = bytearray(len(content) + SIGNATURE_LENGTH)
        try:
            message[: len(content)] = content
            keys_message = HandoverKeys(body.channel_pubkey.raw, body.issued_at, content)
            message[len(content) :] = self.operators.sign(keys_message)
            return GrantedHandover(seal_secret(body.channel_pubkey, message), len(keys), self.release_ordinal)
        finally:
            for secret in (content, message, *(key.secret for key in keys)):
                wipe(secret)
