"""From an input to a container, and from a sealed result to the model's output."""

from typing import Final

import attrs

from common.api import limits
from common.box import PublicKey, SecretKey
from common.container import Commitment, Sealer
from common.domains import Domains
from common.envelope import Envelope, ResultBody
from common.framing import FRAME_BYTES
from common.messages.sessions import ResultKey
from common.refusal import Refused
from common.sealed_result import ResultOpener
from common.sealed_stream import HEAD_BYTES, ContainerHead
from svc.core.market import Market
from svc.core.typed_data import SigningRequest, request
from svc.errors import ResultUnreadable

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


PURPOSE: Final = "result key"


def to_sign(domains: Domains) -> SigningRequest:
    return request("result key", domains.results, ResultKey(PURPOSE))


def key_order(derived: SecretKey | None, given: SecretKey | None, *, given_first: bool) -> tuple[SecretKey, ...]:
    """The keys to open with; results are sealed to the first."""
    keys = (given, derived) if given_first else (derived, given)
    return tuple(key for key in keys if key is not None)
