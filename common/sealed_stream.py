"""Seal and open containers and results. Both have a random seed sealed to a recipient, then encrypted frames.

    0x01 ‖ seed_wrap (80) ‖ ciphertext

    seed_wrap     sealed box of a random 32-byte seed, to the recipient's X25519 key
    ciphertext    the frames of `common.framing`, under a key derived from the seed

Containers and results derive that key differently, so the caller passes the function `derive_key`.
"""

import os
from collections.abc import Callable
from typing import Final, Self

import attrs

from common import box
from common.framing import HEADER_BYTES, MIN_STREAM_BYTES, FrameOpener, FrameSealer, Piece
from common.key_derivation import SEED_BYTES
from common.refusal import Refused

FORMAT_VERSION: Final = 1
SEED_WRAP_BYTES: Final = SEED_BYTES + box.SEAL_OVERHEAD_BYTES
HEAD_BYTES: Final = 1 + SEED_WRAP_BYTES
FIRST_PIECE_BYTES: Final = HEAD_BYTES + HEADER_BYTES
"""Best length of an opener's first piece. Further pieces of one sealed frame each are then opened without a copy."""
MIN_SEALED_BYTES: Final = HEAD_BYTES + MIN_STREAM_BYTES


def check_version(first: int) -> None:
    if first != FORMAT_VERSION:
        raise Refused(f"the first byte, the format version, must be {FORMAT_VERSION}, not {first}", code="bad_version")


@attrs.frozen
class ContainerHead:
    """First 81 bytes of a container or result: the version and the sealed seed."""

    seed_wrap: bytes

    def __attrs_post_init__(self) -> None:
        if len(self.seed_wrap) != SEED_WRAP_BYTES:
            raise Refused(f"a seed wrap must have {SEED_WRAP_BYTES} bytes", "seed_wrap", "bad_container")

    @classmethod
    def parse(cls, raw: Piece) -> Self:
        """Read the head at the start of `raw`, and ignore the bytes after the head."""
        if len(raw) < HEAD_BYTES:
            raise too_short_error(len(raw))
        check_version(raw[0])
        return cls(bytes(raw[1:HEAD_BYTES]))

    def encode(self) -> bytes:
        return bytes((FORMAT_VERSION,)) + self.seed_wrap

    def open_seed(self, secret: box.SecretKey) -> bytes:
        """Return the seed. Refuse a seed that is sealed to another key as `unseal_failed`."""
        seed = box.open_sealed(secret, self.seed_wrap)
        if seed is None:
            raise Refused("the seed cannot be decrypted with this key", "seed_wrap", "unseal_failed")
        return seed


class StreamSealer:
    """Seal a plaintext of any length piece by piece, under a random seed."""

    __slots__ = ("_frame_sealer", "_pending_head", "head")

    def __init__(self, recipient: box.PublicKey, derive_key: Callable[[bytes], bytes]) -> None:
        seed = os.urandom(SEED_BYTES)
        self.head = ContainerHead(box.seal(recipient, seed))
        self._frame_sealer = FrameSealer(derive_key(seed))
        self._pending_head = self.head.encode() + self._frame_sealer.header

    def push(self, piece: Piece) -> bytes:
        """Return the sealed bytes that are ready. The result of the first call starts with the head."""
        return self._with_head(self._frame_sealer.push(piece))

    def finish(self) -> bytes:
        """Return the remaining sealed bytes."""
        return self._with_head(self._frame_sealer.finish())

    def _with_head(self, sealed: bytes) -> bytes:
        if not self._pending_head:
            return sealed
        head, self._pending_head = self._pending_head, b""
        return head + sealed


class StreamOpener:
    """Open sealed bytes piece by piece, beginning with the version byte.

    `pull` returns authentic plaintext, but only `finish` proves that the plaintext is complete. The error codes are
    `too_short`, `bad_version`, `unseal_failed` (from `derive_key`) and `undecryptable`.
    """

    __slots__ = ("_derive_key", "_first_bytes", "_frame_opener")

    def __init__(self, derive_key: Callable[[ContainerHead], bytes]) -> None:
        self._derive_key = derive_key
        self._first_bytes = bytearray()  # buffered until they have the minimum length
        self._frame_opener: FrameOpener | None = None

    def pull(self, piece: Piece) -> bytes:
        """Return the plaintext of the frames that this piece completes. The plaintext is often empty."""
        if self._frame_opener is not None:
            return self._frame_opener.pull(piece)
        with memoryview(piece).cast("B") as rest:
            missing = min(MIN_SEALED_BYTES - len(self._first_bytes), len(rest))
            self._first_bytes += rest[:missing]
            if len(self._first_bytes) < MIN_SEALED_BYTES:
                return b""
            self._frame_opener = FrameOpener(self._derive_key(ContainerHead.parse(self._first_bytes)))
            self._frame_opener.pull(self._first_bytes[HEAD_BYTES:])
            return self._frame_opener.pull(rest[missing:])

    def finish(self) -> bytes:
        """Return the rest of the plaintext. Refuse a truncated stream."""
        if self._frame_opener is None:
            raise too_short_error(len(self._first_bytes))
        return self._frame_opener.finish()


def too_short_error(length: int) -> Refused:
    return Refused(f"sealed data must have at least {MIN_SEALED_BYTES} bytes, not {length}", code="too_short")
