"""Container v1: a job's sealed payload, and the commitment that its order signs.

    container = 0x01 ‖ seed_wrap (80) ‖ ciphertext (41 or more)

    ct_hash   = keccak256(ciphertext)
    c         = keccak256(0x01 ‖ seed_wrap ‖ ct_hash)

The commitment covers the ciphertext only through its hash. An escrow that has only `seed_wrap` and `ct_hash` can
therefore check them against the commitment on the chain.
"""

from typing import Final, Self

import attrs

from common import framing
from common.box import PublicKey, SecretKey
from common.framing import Piece
from common.keccak import Keccak256, keccak256
from common.key_derivation import data_key
from common.refusal import Refused
from common.sealed_stream import (
    HEAD_BYTES,
    MIN_SEALED_BYTES,
    ContainerHead,
    StreamOpener,
    StreamSealer,
    check_version,
    too_short_error,
)

MIN_CONTAINER_BYTES: Final = MIN_SEALED_BYTES


def sealed_length(plaintext_length: int) -> int:
    """Return the length of the container of a plaintext."""
    return HEAD_BYTES + framing.sealed_length(plaintext_length)


def commitment(seed_wrap: bytes, ct_hash: bytes) -> bytes:
    """Return the 32-byte commitment `c` that an order signs. Refuse arguments of wrong length as `bad_container`."""
    if len(ct_hash) != 32:
        raise Refused("a ciphertext hash must have 32 bytes", "ct_hash", "bad_container")
    return keccak256(ContainerHead(seed_wrap).encode() + ct_hash)


@attrs.frozen
class ContainerCommitment:
    """Commitment `c` of a complete container, with the values that the commitment covers."""

    c: bytes
    seed_wrap: bytes
    ct_hash: bytes
    length: int


class CommitmentHasher:
    """Compute the commitment of a container from pieces of any size.

    Refuse a container as `too_short`, `bad_version` (already in `update`) or `bad_container`, in this order.
    `bad_container` means that no plaintext has a container of this length, for example because bytes are missing.
    """

    __slots__ = ("_ciphertext", "_head", "_length")

    def __init__(self) -> None:
        self._head = bytearray()
        self._ciphertext = Keccak256()
        self._length = 0

    def update(self, piece: Piece) -> None:
        before = self._length
        self._length += len(piece)
        if before >= HEAD_BYTES:
            self._ciphertext.update(piece)
        else:
            with memoryview(piece).cast("B") as rest:
                self._head += rest[: HEAD_BYTES - before]
                self._ciphertext.update(rest[HEAD_BYTES - before :])
        if before < MIN_CONTAINER_BYTES <= self._length:
            ContainerHead.parse(self._head)

    def finish(self) -> ContainerCommitment:
        if self._length < MIN_CONTAINER_BYTES:
            raise too_short_error(self._length)
        if not framing.is_sealed_length(self._length - HEAD_BYTES):
            raise Refused(f"no container has {self._length} bytes; this one may be truncated", code="bad_container")
        seed_wrap = ContainerHead.parse(self._head).seed_wrap
        ct_hash = self._ciphertext.digest()
        return ContainerCommitment(commitment(seed_wrap, ct_hash), seed_wrap, ct_hash, self._length)


def commitment_of(container: Piece) -> ContainerCommitment:
    """Return the commitment of a complete container. Unlike `CommitmentHasher`, copy no bytes."""
    head, ct_hash = _head_and_hash(container)
    return ContainerCommitment(keccak256(head + ct_hash), head[1:], ct_hash, memoryview(container).nbytes)


def check_commitment(container: Piece, c: bytes) -> None:
    """Refuse a container whose commitment differs from `c`."""
    head, ct_hash = _head_and_hash(container)
    if keccak256(head + ct_hash) != c:
        raise Refused("the container does not reproduce the commitment", code="commitment_mismatch")


def _head_and_hash(container: Piece) -> tuple[bytes, bytes]:
    whole = memoryview(container).cast("B")
    length = len(whole)
    if length < MIN_CONTAINER_BYTES:
        raise too_short_error(length)
    head = bytes(whole[:HEAD_BYTES])
    check_version(head[0])
    if not framing.is_sealed_length(length - HEAD_BYTES):
        raise Refused(f"no container has {length} bytes; this one may be truncated", code="bad_container")
    return head, keccak256(whole[HEAD_BYTES:])


class Sealer(StreamSealer):
    """Seal a payload piece by piece. The data key depends on the owner and the deployment."""

    def __init__(self, recipient: PublicKey, chain_id: int, job_registry: bytes, owner: bytes) -> None:
        super().__init__(recipient, lambda seed: data_key(seed, chain_id, job_registry, owner))


class Opener(StreamOpener):
    """Open a container piece by piece, with its data key, its seed or the recipient's secret key.

    An opener does not check the commitment. Feed the same bytes to a `CommitmentHasher`, and use the plaintext only
    when both have finished.
    """

    @classmethod
    def with_data_key(cls, key: bytes) -> Self:
        """Open with a data key that an escrow released. Ignore the seed wrap."""
        return cls(lambda _head: key)

    @classmethod
    def with_seed(cls, seed: bytes, chain_id: int, job_registry: bytes, owner: bytes) -> Self:
        return cls.with_data_key(data_key(seed, chain_id, job_registry, owner))

    @classmethod
    def with_secret(cls, secret: SecretKey, chain_id: int, job_registry: bytes, owner: bytes) -> Self:
        """Open with the recipient's key. Refuse a wrap that is sealed to another key as `unseal_failed`."""
        return cls(lambda head: data_key(head.open_seed(secret), chain_id, job_registry, owner))


def seal(recipient: PublicKey, chain_id: int, job_registry: bytes, owner: bytes, plaintext: Piece) -> bytes:
    sealer = Sealer(recipient, chain_id, job_registry, owner)
    return sealer.push(plaintext) + sealer.finish()


def open_with_data_key(key: bytes, container: Piece) -> bytes:
    return _open_whole(Opener.with_data_key(key), container)


def open_with_secret(secret: SecretKey, chain_id: int, job_registry: bytes, owner: bytes, container: Piece) -> bytes:
    return _open_whole(Opener.with_secret(secret, chain_id, job_registry, owner), container)


def _open_whole(opener: Opener, container: Piece) -> bytes:
    return opener.pull(container) + opener.finish()
