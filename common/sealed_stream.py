"""Sealed streams, the format of containers and results: a random seed sealed to a recipient, then a stream.

    0x01 ‖ seed_wrap (80) ‖ ciphertext

    seed_wrap     sealed box of a random 32-byte seed, to the recipient's X25519 key
    ciphertext    the frames of `common.framing`, under a key derived from the seed

Containers and results derive that key differently, so the caller passes a function for it (`derive` or `key_of`).
"""

import os
from collections.abc import Callable
from typing import Final, Self

import attrs

from common import box
from common.framing import HEADER_BYTES, MIN_STREAM_BYTES, Piece, Puller, Pusher
from common.key_derivation import SEED_BYTES
from common.refusal import Refused

FORMAT_VERSION: Final = 1
SEED_WRAP_BYTES: Final = SEED_BYTES + box.SEAL_OVERHEAD
HEAD_BYTES: Final = 1 + SEED_WRAP_BYTES
BEFORE_FRAMES: Final = HEAD_BYTES + HEADER_BYTES
"""End of a first piece that opens without copies, if each further piece is one frame."""
MIN_SEALED_BYTES: Final = HEAD_BYTES + MIN_STREAM_BYTES


def check_version(first: int) -> None:
    if first != FORMAT_VERSION:
        raise Refused(f"version {first} is not supported", code="bad_version")


@attrs.frozen
class ContainerHead:
    """First 81 bytes: the version and the wrapped seed."""

    seed_wrap: bytes

    def __attrs_post_init__(self) -> None:
        if len(self.seed_wrap) != SEED_WRAP_BYTES:
            raise Refused(f"a seed wrap must have {SEED_WRAP_BYTES} bytes", "seed_wrap", "bad_container")

    @classmethod
    def parse(cls, raw: Piece) -> Self:
        """Read the head at the start of `raw`, and ignore the bytes after the head."""
        if len(raw) < HEAD_BYTES:
            raise too_short(len(raw))
        check_version(raw[0])
        return cls(bytes(raw[1:HEAD_BYTES]))

    def encode(self) -> bytes:
        return bytes((FORMAT_VERSION,)) + self.seed_wrap

    def open_seed(self, secret: box.SecretKey) -> bytes:
        """Return the seed. Refused as `unseal_failed` if it is not sealed to this key."""
        seed = box.open_sealed(secret, self.seed_wrap)
        if seed is None:
            raise Refused("the seed does not open with this key", "seed_wrap", "unseal_failed")
        return seed


class StreamSealer:
    """Seal a plaintext of any length piece by piece, under a random seed."""

    __slots__ = ("_ahead", "_pusher", "head")

    def __init__(self, recipient: box.PublicKey, derive: Callable[[bytes], bytes]) -> None:
        seed = os.urandom(SEED_BYTES)
        self.head = ContainerHead(box.seal(recipient, seed))
        self._pusher = Pusher(derive(seed))
        self._ahead = self.head.encode() + self._pusher.header

    def push(self, piece: Piece) -> bytes:
        """Return the sealed bytes that are ready. The first call also returns the head."""
        return self._with_head(self._pusher.push(piece))

    def finish(self) -> bytes:
        """Return the remaining sealed bytes."""
        return self._with_head(self._pusher.finish())

    def _with_head(self, sealed: bytes) -> bytes:
        if not self._ahead:
            return sealed
        ahead, self._ahead = self._ahead, b""
        return ahead + sealed


class StreamOpener:
    """Open sealed bytes piece by piece, beginning with the version byte.

    `pull` returns authentic plaintext, but only `finish` proves that the plaintext is complete. Refuses with
    `too_short`, `bad_version`, `unseal_failed` (from `key_of`) or `undecryptable`.
    """

    __slots__ = ("_ahead", "_key_of", "_puller")

    def __init__(self, key_of: Callable[[ContainerHead], bytes]) -> None:
        self._key_of = key_of
        self._ahead = bytearray()  # first bytes, until they have the minimum length
        self._puller: Puller | None = None

    def pull(self, piece: Piece) -> bytes:
        """Return the plaintext of the frames that this piece completes. Often it is empty."""
        if self._puller is not None:
            return self._puller.pull(piece)
        with memoryview(piece).cast("B") as rest:
            taken = min(MIN_SEALED_BYTES - len(self._ahead), len(rest))
            self._ahead += rest[:taken]
            if len(self._ahead) < MIN_SEALED_BYTES:
                return b""
            self._puller = Puller(self._key_of(ContainerHead.parse(self._ahead)))
            self._puller.pull(self._ahead[HEAD_BYTES:])
            return self._puller.pull(rest[taken:])

    def finish(self) -> bytes:
        """Return the rest of the plaintext. Refuses a truncated stream."""
        if self._puller is None:
            raise too_short(len(self._ahead))
        return self._puller.finish()


def too_short(length: int) -> Refused:
    return Refused(f"{length} bytes are too short: the minimum is {MIN_SEALED_BYTES}", code="too_short")
