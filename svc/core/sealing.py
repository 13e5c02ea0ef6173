"""Seal an input into a container, and read the sealed result."""

from typing import Final

import attrs

from common.api import limits
from common.box import PublicKey, SecretKey
from common.container import CommitmentHasher, Sealer
from common.domains import Domains
from common.envelope import Envelope, ResultBody
from common.framing import FRAME_BYTES
from common.messages.sessions import ResultKey
from common.refusal import Refused
from common.sealed_result import ResultOpener
from common.sealed_stream import HEAD_BYTES, ContainerHead
from svc.core.market import VerifiedMarket
from svc.core.typed_data import SigningRequest, build_signing_request
from svc.errors import ResultUnreadable

MAX_INLINE_CONTAINER_BYTES: Final = limits.MAX_INLINE_BYTES  # larger containers are uploaded with POST /v1/files
RESULT_KEY_PURPOSE: Final = "result key"


@attrs.frozen(slots=True)
class SealedContainer:
    """Sealed input (the container), and its commitment `c`, which the order contains."""

    container: bytes = attrs.field(repr=False)
    c: bytes

    @property
    def fits_inline(self) -> bool:
        return len(self.container) <= MAX_INLINE_CONTAINER_BYTES


def seal_envelope(market: VerifiedMarket, recipient: PublicKey, envelope: Envelope) -> SealedContainer:
    plaintext = memoryview(envelope.encode())
    sealer = Sealer(recipient, market.chain_id, market.job_registry, envelope.owner)
    commitment = CommitmentHasher()
    sealed = []
    for at in range(0, len(plaintext), FRAME_BYTES):
        sealed.append(sealer.push(plaintext[at : at + FRAME_BYTES]))
        commitment.update(sealed[-1])
    sealed.append(sealer.finish())
    commitment.update(sealed[-1])
    return SealedContainer(b"".join(sealed), commitment.finish().c)


class ResultReader:
    """Opens a sealed result chunk by chunk, with the key to which the result was sealed.

    Raises ResultUnreadable for a result of another job, and for a result that is sealed to none of the given keys.
    """

    def __init__(self, market: VerifiedMarket, keys: tuple[SecretKey, ...], job_id: bytes) -> None:
        self._context = (market.chain_id, market.job_registry, job_id)
        self._keys = keys
        self._head_buffer = bytearray()
        self._opener: ResultOpener | None = None

    def pull(self, chunk: bytes) -> bytes:
        """Return the plaintext that this chunk completes. Trust the plaintext only after `finish` has returned."""
        try:
            if self._opener is not None:
                return self._opener.pull(chunk)
            self._head_buffer += chunk
            if len(self._head_buffer) < HEAD_BYTES:
                return b""
            self._opener = ResultOpener.with_secret(self._find_key(bytes(self._head_buffer)), *self._context)
            return self._opener.pull(self._head_buffer)
        except Refused as refusal:
            raise _unreadable_error(refusal) from None

    def finish(self) -> bytes:
        if self._opener is None:
            raise ResultUnreadable("the result is too short", code="too_short")
        try:
            return self._opener.finish()
        except Refused as refusal:
            raise _unreadable_error(refusal) from None

    def _find_key(self, head: bytes) -> SecretKey:
        """Return the first key that opens the wrapped seed, or the last key if no other key opens the seed.

        The last key is not tried here, because the opener raises the error for a wrong key.
        """
        *others, last = self._keys
        wrap = ContainerHead.parse(head)
        for key in others:
            try:
                wrap.open_seed(key)
            except Refused:
                continue
            return key
        return last


def parse_result_body(plaintext: bytes, job_id: bytes) -> ResultBody:
    """Parse the body of a result. Raises ResultUnreadable if the body is malformed or names another job."""
    try:
        body = ResultBody.parse(plaintext)
    except Refused as refusal:
        raise _unreadable_error(refusal) from None
    if body.job_id != job_id:
        raise ResultUnreadable("the result is for another job", param="job_id", code="malformed_result")
    return body


def _unreadable_error(refusal: Refused) -> ResultUnreadable:
    return ResultUnreadable(f"the result cannot be opened: {refusal}", code=refusal.code, param=refusal.param)


def result_key_request(domains: Domains) -> SigningRequest:
    """Return the signing request for the signature from which the result key is derived."""
    return build_signing_request("result key", domains.results, ResultKey(RESULT_KEY_PURPOSE))


def list_result_keys(
    derived: SecretKey | None, configured: SecretKey | None, *, configured_first: bool
) -> tuple[SecretKey, ...]:
    """Return the keys that may open a result. New results are sealed to the first key."""
    keys = (configured, derived) if configured_first else (derived, configured)
    return tuple(key for key in keys if key is not None)
