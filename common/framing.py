"""Authenticated frames of a byte stream: libsodium's secretstream (XChaCha20-Poly1305) with fixed frame lengths.

    header (24) ‖ frame ‖ frame ‖ … ‖ last frame

    other frames  65,536 bytes of plaintext, tag MESSAGE, 65,553 bytes sealed
    last frame    1..65,536 bytes of plaintext, tag FINAL; 0 bytes only when the whole plaintext is empty

Secretstream leaves frame lengths and tags to the application. Here each plaintext has exactly one framing, and the
reader refuses all others. The sealed length therefore depends only on the plaintext's length, and the reader detects
truncation.

Both directions accept pieces of any size and buffer at most two frames. The fastest pieces are `bytes` of one frame
(`FRAME_BYTES` or `SEALED_FRAME_BYTES`), which need no copy.
"""

from typing import Final

from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)
from nacl.bindings import crypto_secretstream_xchacha20poly1305_TAG_FINAL as TAG_FINAL
from nacl.bindings import crypto_secretstream_xchacha20poly1305_TAG_MESSAGE as TAG_MESSAGE
from nacl.exceptions import CryptoError

from common.refusal import Refused

Piece = bytes | bytearray | memoryview

FRAME_BYTES: Final = 65_536
FRAME_OVERHEAD_BYTES: Final = 17  # a tag byte and a 16-byte MAC
SEALED_FRAME_BYTES: Final = FRAME_BYTES + FRAME_OVERHEAD_BYTES
HEADER_BYTES: Final = 24
KEY_BYTES: Final = 32
MIN_STREAM_BYTES: Final = HEADER_BYTES + FRAME_OVERHEAD_BYTES


def sealed_length(plaintext_length: int) -> int:
    """Return the length of the sealed stream of a plaintext."""
    frames = max(1, -(-plaintext_length // FRAME_BYTES))
    return HEADER_BYTES + plaintext_length + frames * FRAME_OVERHEAD_BYTES


def is_sealed_length(length: int) -> bool:
    """Return True if some plaintext has a sealed stream of this length. This check needs no key."""
    full_frames, last = divmod(length - HEADER_BYTES, SEALED_FRAME_BYTES)
    if full_frames <= 0:
        return full_frames == 0 and last >= FRAME_OVERHEAD_BYTES
    return last == 0 or last > FRAME_OVERHEAD_BYTES


class FrameSealer:
    """Seal pieces into frames.

    The stream is `header`, then the results of all `push` calls, then the result of `finish`.
    """

    __slots__ = ("_finished", "_full", "_partial", "_state", "header")

    def __init__(self, key: bytes) -> None:
        _check_key(key)
        self._state = crypto_secretstream_xchacha20poly1305_state()
        self.header = crypto_secretstream_xchacha20poly1305_init_push(self._state, key)
        self._full: bytes | None = None  # a full frame, not sealed yet because it may be the last
        self._partial = bytearray()  # start of the next frame
        self._finished = False

    def push(self, piece: Piece) -> bytes:
        """Add a piece of plaintext. Return the sealed frames that are certainly not the last frame.

        A full frame is sealed only when more plaintext follows, so the result is often empty.
        """
        if self._finished:
            raise RuntimeError("push() was called after finish(); use a new FrameSealer for another stream")
        if len(piece) == FRAME_BYTES and not self._partial and isinstance(piece, bytes):  # no copy needed
            before, self._full = self._full, piece
            return b"" if before is None else self._seal(before, TAG_MESSAGE)
        sealed: list[bytes] = []
        for frame in _cut_frames(piece, self._partial, FRAME_BYTES):
            if self._full is not None:
                sealed.append(self._seal(self._full, TAG_MESSAGE))
            self._full = frame
        return sealed[0] if len(sealed) == 1 else b"".join(sealed)

    def finish(self) -> bytes:
        """Seal and return the remaining frames. The last frame has the final tag."""
        if self._finished:
            raise RuntimeError("finish() was already called; call finish() once for each stream")
        self._finished = True
        if self._full is None:
            return self._seal(bytes(self._partial), TAG_FINAL)
        if not self._partial:
            return self._seal(self._full, TAG_FINAL)
        return self._seal(self._full, TAG_MESSAGE) + self._seal(bytes(self._partial), TAG_FINAL)

    def _seal(self, frame: bytes, tag: int) -> bytes:
        return crypto_secretstream_xchacha20poly1305_push(self._state, frame, None, tag)


class FrameOpener:
    """Open a stream piece by piece, including its header.

    `pull` returns plaintext that is authentic and in order. Only `finish` proves that the stream is complete, so do not
    use the plaintext before `finish`. `pull` and `finish` refuse a malformed or forged stream as `undecryptable`.
    """

    __slots__ = ("_at_header", "_key", "_opened_frames", "_partial", "_refused", "_state", "_tag")

    def __init__(self, key: bytes) -> None:
        _check_key(key)
        self._key = key
        self._state = crypto_secretstream_xchacha20poly1305_state()
        self._partial = bytearray()  # incomplete header or frame
        self._at_header = True
        self._opened_frames = 0
        self._tag = TAG_MESSAGE  # tag of the newest frame
        self._refused = False

    def pull(self, piece: Piece) -> bytes:
        """Return the plaintext of the frames that this piece completes. The plaintext is often empty."""
        if self._refused:
            raise RuntimeError("pull() was called on a stream that was refused; use a new FrameOpener")
        if len(piece) == SEALED_FRAME_BYTES and not (self._partial or self._at_header) and isinstance(piece, bytes):
            return self._open(piece)
        if self._at_header:
            taken = HEADER_BYTES - len(self._partial)
            rest = memoryview(piece).cast("B")
            self._partial += rest[:taken]
            piece = rest[taken:]
            if len(self._partial) == HEADER_BYTES:
                crypto_secretstream_xchacha20poly1305_init_pull(self._state, bytes(self._partial), self._key)
                self._partial.clear()
                self._at_header = False
        opened = [self._open(frame) for frame in _cut_frames(piece, self._partial, SEALED_FRAME_BYTES)]
        if self._partial and self._tag == TAG_FINAL:
            raise self._mark_refused("bytes follow the last frame")
        return opened[0] if len(opened) == 1 else b"".join(opened)

    def finish(self) -> bytes:
        """Return the plaintext of the last frame if that frame is not full. Refuse a truncated stream."""
        if self._refused:
            raise RuntimeError("finish() was called on a stream that was refused; use a new FrameOpener")
        if self._tag == TAG_FINAL:
            return b""
        if self._at_header or len(self._partial) < FRAME_OVERHEAD_BYTES:
            raise self._mark_refused("the stream ends before its last frame")
        if self._opened_frames and len(self._partial) == FRAME_OVERHEAD_BYTES:
            raise self._mark_refused("the last frame is empty, but other frames precede it")
        last = self._open(bytes(self._partial))
        if self._tag != TAG_FINAL:
            raise self._mark_refused("the stream ends before its last frame")
        return last

    def _open(self, frame: bytes) -> bytes:
        if self._tag == TAG_FINAL:
            raise self._mark_refused("bytes follow the last frame")
        try:
            plaintext, self._tag = crypto_secretstream_xchacha20poly1305_pull(self._state, frame)
        except CryptoError:
            raise self._mark_refused("a frame cannot be decrypted with this key") from None
        if self._tag not in (TAG_MESSAGE, TAG_FINAL):
            raise self._mark_refused("a frame has a tag that this format does not use")
        self._opened_frames += 1
        return plaintext

    def _mark_refused(self, reason: str) -> Refused:
        self._refused = True
        return Refused(reason, code="undecryptable")


def _cut_frames(piece: Piece, partial: bytearray, size: int) -> list[bytes]:
    """Split `partial` + `piece` into full frames, and leave the rest in `partial`."""
    rest = memoryview(piece).cast("B")
    frames: list[bytes] = []
    at = 0
    if partial:
        at = size - len(partial)
        partial += rest[:at]
        if len(partial) < size:
            return frames
        frames.append(bytes(partial))
        partial.clear()
    while len(rest) - at >= size:
        frames.append(bytes(rest[at : at + size]))
        at += size
    partial += rest[at:]
    return frames


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a stream key must have {KEY_BYTES} bytes, not {len(key)}")
