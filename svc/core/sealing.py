"""From an input to a container, and from a sealed result to the model's output."""

from collections.abc import Collection, Mapping
from typing import Final

import attrs

from common import escrow_evidence
from common.api import limits
from common.box import PublicKey, SecretKey
from common.container import Commitment, Sealer
from common.domains import Domains
from common.envelope import LONGEST_CUSTOM_ID, Envelope, ResultBody
from common.framing import FRAME_BYTES
from common.messages.sessions import ResultKey
from common.refusal import Refused
from common.scalars import read_bare_hex
from common.sealed_result import ResultOpener
from common.sealed_stream import HEAD_BYTES, ContainerHead
from svc.core.known_market import Market
from svc.core.typed_data import SigningRequest, request
from svc.errors import EscrowUntrusted, ResultUnreadable
from svc.records import EscrowKey

INLINE_BYTES: Final = limits.INLINE_BYTES  # a larger container goes through POST /v1/files


@attrs.frozen(slots=True)
class Sealed:
    container: bytes = attrs.field(repr=False)
    c: bytes

    @property
    def fits_inline(self) -> bool:
        return len(self.container) <= INLINE_BYTES


def seal_envelope(market: Market, recipient: PublicKey, envelope: Envelope) -> Sealed:
    plaintext = memoryview(envelope.encode())
    sealer = Sealer(recipient, market.chain_id, market.job_registry, envelope.owner)
    commitment = Commitment()
    sealed = []
    for at in range(0, len(plaintext), FRAME_BYTES):
        sealed.append(sealer.push(plaintext[at : at + FRAME_BYTES]))
        commitment.update(sealed[-1])
    sealed.append(sealer.finish())
    commitment.update(sealed[-1])
    return Sealed(b"".join(sealed), commitment.finish().c)


class ResultReader:
    """Opens a sealed result from its pieces, with whichever of the keys it was sealed to.

    A result opens only for the job that it was made for, and only with a key that the job's envelope named; what
    neither is refused as ResultUnreadable.
    """

    def __init__(self, market: Market, keys: tuple[SecretKey, ...], job_id: bytes) -> None:
        self._place = (market.chain_id, market.job_registry, job_id)
        self._keys = keys
        self._ahead = bytearray()
        self._opener: ResultOpener | None = None

    def pull(self, piece: bytes) -> bytes:
        """Plaintext that this piece completes. It is to be trusted only once `finish` has returned."""
        try:
            if self._opener is not None:
                return self._opener.pull(piece)
            self._ahead += piece
            if len(self._ahead) < HEAD_BYTES:
                return b""
            self._opener = ResultOpener.with_secret(self._key_of(bytes(self._ahead)), *self._place)
            return self._opener.pull(self._ahead)
        except Refused as refusal:
            raise _unreadable(refusal) from None

    def finish(self) -> bytes:
        if self._opener is None:
            raise ResultUnreadable("the result is too short to be one", code="too_short")
        try:
            return self._opener.finish()
        except Refused as refusal:
            raise _unreadable(refusal) from None

    def _key_of(self, head: bytes) -> SecretKey:
        """Tried on the wrap alone. The last key is taken untried: its opener says what is wrong."""
        *others, last = self._keys
        wrap = ContainerHead.parse(head)
        for key in others:
            try:
                wrap.open_seed(key)
            except Refused:
                continue
            return key
        return last


def read_body(plaintext: bytes, job_id: bytes) -> ResultBody:
    """The body of a result, which must name the job that it was read for."""
    try:
        body = ResultBody.parse(plaintext)
    except Refused as refusal:
        raise _unreadable(refusal) from None
    if body.job_id != job_id:
        raise ResultUnreadable("the result names another job", param="job_id", code="malformed_result")
    return body


def _unreadable(refusal: Refused) -> ResultUnreadable:
    return ResultUnreadable(f"the result does not open: {refusal}", code=refusal.code, param=refusal.param)


# Input that is sealed: the model's own.

ModelInput = str | Mapping[str, object]


def model_input(given: ModelInput) -> dict[str, object]:
    """A string is wrapped as `{"input": …}`; an object is the model's own input.

    >>> model_input("hello")
    {'input': 'hello'}
    """
    if isinstance(given, str):
        return {"input": given}
    if not isinstance(given, Mapping):
        raise Refused("input must be a string or an object", "input")
    return dict(given)


def read_custom_id(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_CUSTOM_ID:
        raise Refused(f"custom_id must be a string of 1 to {LONGEST_CUSTOM_ID} characters", "custom_id")
    return value


# The key that results are sealed to: made from the wallet's signature whenever it is needed, or given.
#
# A job's result opens only with the key that its envelope named, so every key that a client knows is tried.

PURPOSE: Final = "result key"


def to_sign(domains: Domains) -> SigningRequest:
    return request("result key", domains.results, ResultKey(PURPOSE))


def key_order(derived: SecretKey | None, given: SecretKey | None, *, given_first: bool) -> tuple[SecretKey, ...]:
    """The keys to open with; results are sealed to the first."""
    keys = (given, derived) if given_first else (derived, given)
    return tuple(key for key in keys if key is not None)


# Verification of an escrow's key before anything is sealed to it. Whoever holds it can open every open order.
#
# The evidence must be for this very key (`report_data`), of a kind that is taken, and not of a debug build. That ties
# evidence and key together and proves no more: static evidence is a hash that anybody computes, and whoever runs the
# coordinator holds the key. Whose key it is, is for the client to know, by pinning it or from its first use.


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
