"""Container v1: a job's sealed payload, and the commitment that its order signs.

    container = 0x01 ‖ seed_wrap (80) ‖ ciphertext (41 or more)

    ct_hash   = keccak256(ciphertext)
    c         = keccak256(0x01 ‖ seed_wrap ‖ ct_hash)

The commitment covers the ciphertext through its hash, so that whoever holds only the wrap and the hash (an
escrow that is asked for a key) can check them against the chain without the payload.
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
    SHORTEST,
    ContainerHead,
    StreamOpener,
    StreamSealer,
    check_version,
    too_short,
)

SHORTEST_CONTAINER: Final = SHORTEST


def sealed_length(plaintext_length: int) -> int:
    """How long the container of a plaintext is."""
    return HEAD_BYTES + framing.sealed_length(plaintext_length)


def commitment(seed_wrap: bytes, ct_hash: bytes) -> bytes:
    """The 32 bytes `c` that an order signs. Parts of the wrong length are refused as `bad_container`."""
    if len(ct_hash) != 32:
        raise Refused("a ciphertext hash has 32 bytes", "ct_hash", "bad_container")
    return keccak256(ContainerHead(seed_wrap).encode() + ct_hash)


@attrs.frozen
class Committed:
    """What a whole container commits to."""

    c: bytes
    seed_wrap: bytes
    ct_hash: bytes
    length: int


class Commitment:
    """Computes a container's commitment from its bytes as they pass, in pieces of any size.

    Refuses, in this order, with `too_short`, `bad_version` (as early as it is sure) and `bad_container`: a
    length that no plaintext has, which is what a container that was cut in transit most often shows.
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
        if before < SHORTEST_CONTAINER <= self._length:
            ContainerHead.parse(self._head)

    def finish(self) -> Committed:
        if self._length < SHORTEST_CONTAINER:
            raise too_short(self._length)
        if not framing.is_sealed_length(self._length - HEAD_BYTES):
            raise Refused(f"no container has {self._length} bytes", code="bad_container")
        seed_wrap = ContainerHead.parse(self._head).seed_wrap
        ct_hash = self._ciphertext.digest()
        return Committed(commitment(seed_wrap, ct_hash), seed_wrap, ct_hash, self._length)


def commit(container: Piece) -> Committed:
    """The commitment of a container that is at hand as a whole: what `Commitment` says, without its copies."""
    head, ct_hash = _head_and_hash(container)
    return Committed(keccak256(head + ct_hash), head[1:], ct_hash, memoryview(container).nbytes)


def check_container(container: Piece, c: bytes) -> None:
    """Refuses bytes that are not the container that `c` commits to."""
    head, ct_hash = _head_and_hash(container)
    if keccak256(head + ct_hash) != c:
        raise Refused("the container does not reproduce the commitment", code="commitment_mismatch")


def _head_and_hash(container: Piece) -> tuple[bytes, bytes]:
    whole = memoryview(container).cast("B")
    length = len(whole)
    if length < SHORTEST_CONTAINER:
        raise too_short(length)
    head = bytes(whole[:HEAD_BYTES])
    check_version(head[0])
    if not framing.is_sealed_length(length - HEAD_BYTES):
        raise Refused(f"no container has {length} bytes", code="bad_container")
    return head, keccak256(whole[HEAD_BYTES:])


class Sealer(StreamSealer):
    """Seals a payload to a recipient for one owner on one deployment, piece by piece."""

    def __init__(self, recipient: PublicKey, chain_id: int, job_registry: bytes, owner: bytes) -> None:
        super().__init__(recipient, lambda seed: data_key(seed, chain_id, job_registry, owner))


class Opener(StreamOpener):
    """Opens a container piece by piece, with whichever secret the caller holds.

    It does not check the commitment: feed the same bytes to a `Commitment`, and act on neither before both
    have finished.
    """

    @classmethod
    def with_dek(cls, dek: bytes) -> Self:
        """With the ciphertext's own key, as an escrow releases it; the seed wrap is not looked into."""
        return cls(lambda _head: dek)

    @classmethod
    def with_seed(cls, seed: bytes, chain_id: int, job_registry: bytes, owner: bytes) -> Self:
        return cls.with_dek(data_key(seed, chain_id, job_registry, owner))

    @classmethod
    def with_secret(cls, secret: SecretKey, chain_id: int, job_registry: bytes, owner: bytes) -> Self:
        """With the recipient's key; refuses a wrap sealed to another as `unseal_failed`."""
        return cls(lambda head: data_key(head.open_seed(secret), chain_id, job_registry, owner))


def seal(recipient: PublicKey, chain_id: int, job_registry: bytes, owner: bytes, plaintext: Piece) -> bytes:
    sealer = Sealer(recipient, chain_id, job_registry, owner)
    return sealer.push(plaintext) + sealer.finish()


def open_with_dek(dek: bytes, container: Piece) -> bytes:
    return _open_whole(Opener.with_dek(dek), container)


def open_with_secret(secret: SecretKey, chain_id: int, job_registry: bytes, owner: bytes, container: Piece) -> bytes:
    return _open_whole(Opener.with_secret(secret, chain_id, job_registry, owner), container)


def _open_whole(opener: Opener, container: Piece) -> bytes:
    return opener.pull(container) + opener.finish()
