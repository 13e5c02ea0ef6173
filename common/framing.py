"""A byte stream as authenticated frames: libsodium's secretstream (XChaCha20-Poly1305), in one fixed shape.

    header (24) ‖ frame ‖ frame ‖ … ‖ last frame

    inner frame   65,536 bytes of plaintext, tag MESSAGE, 65,553 bytes sealed
    last frame    1..65,536 bytes of plaintext, tag FINAL; 0 bytes only when the whole plaintext is empty

Secretstream itself leaves the frame lengths and tags to its user; here one plaintext has one framing, and the
reader refuses every other. That makes the sealed length a function of the plaintext's, and a stream that was
cut can be told from one that ended.

Both directions take pieces of any size and hold two frames, whatever the stream's length. Pieces of
`FRAME_BYTES` are the fastest: larger ones leave the processor's cache between being sealed and being used.

This module calls libsodium through PyNaCl's cffi handles: PyNaCl's own wrapper takes `bytes` only, so a piece
that arrives as a bytearray or has to be cut would be copied once more. Memory that outlives a call is cffi's
own (`ffi.new`), never a view of Python's (`ffi.from_buffer`): one in a reference cycle, and whoever keeps an exception
makes one, ends the process when the cycle is collected.
"""

from typing import Any, Final

from nacl._sodium import ffi, lib
from nacl.bindings import sodium_init

from common.refusal import Refused

Piece = bytes | bytearray | memoryview

FRAME_BYTES: Final = 65_536
OVERHEAD_BYTES: Final = 17  # one sealed tag byte and a 16-byte MAC
SEALED_FRAME_BYTES: Final = FRAME_BYTES + OVERHEAD_BYTES
HEADER_BYTES: Final = 24
KEY_BYTES: Final = 32
SHORTEST_STREAM: Final = HEADER_BYTES + OVERHEAD_BYTES

sodium_init()  # until then libsodium uses portable code, at a third of the speed

_STATE_BYTES: Final[int] = lib.crypto_secretstream_xchacha20poly1305_statebytes()
_MESSAGE: Final[int] = lib.crypto_secretstream_xchacha20poly1305_tag_message()
_FINAL: Final[int] = lib.crypto_secretstream_xchacha20poly1305_tag_final()
_NULL: Final = ffi.NULL
_push: Final = lib.crypto_secretstream_xchacha20poly1305_push
_pull: Final = lib.crypto_secretstream_xchacha20poly1305_pull


def sealed_length(plaintext_length: int) -> int:
    """How long the stream of a plaintext is."""
    frames = max(1, -(-plaintext_length // FRAME_BYTES))
    return HEADER_BYTES + plaintext_length + frames * OVERHEAD_BYTES


def is_sealed_length(length: int) -> bool:
    """Whether some plaintext has a stream of this length. Needs no key, so a carrier can check it."""
    full_frames, last = divmod(length - HEADER_BYTES, SEALED_FRAME_BYTES)
    if full_frames <= 0:
        return full_frames == 0 and last >= OVERHEAD_BYTES
    return last == 0 or last > OVERHEAD_BYTES


class Pusher:
    """Seals pieces into frames: the stream is `header`, all that `push` returns, what `finish` returns."""

    __slots__ = (
        "_filled", "_finished", "_held", "_held_at", "_out", "_out_view", "_state", "_whole", "header",
    )  # fmt: skip

    def __init__(self, key: bytes) -> None:
        _check_key(key)
        self._state = ffi.new("unsigned char[]", _STATE_BYTES)
        header = ffi.new("unsigned char[]", HEADER_BYTES)
        lib.crypto_secretstream_xchacha20poly1305_init_push(self._state, header, key)
        self.header = bytes(ffi.buffer(header))
        # A full frame is held back until more arrives: only then is it known not to be the last. It is in
        # `_held`, or it is a whole piece that cannot change and is therefore kept without a copy.
        self._held_at = ffi.new("unsigned char[]", FRAME_BYTES)
        self._held = ffi.buffer(self._held_at)
        self._filled = 0
        self._whole: bytes | None = None
        self._out = ffi.new("unsigned char[]", SEALED_FRAME_BYTES)
        self._out_view = ffi.buffer(self._out)
        self._finished = False

    def push(self, piece: Piece) -> bytes:
        """The frames that this piece completes; often none."""
        if self._finished:
            raise RuntimeError("a finished stream takes no more pieces")
        if isinstance(piece, bytes) and len(piece) == FRAME_BYTES and not self._filled:
            before, self._whole = self._whole, piece
            return b"" if before is None else self._seal(before, FRAME_BYTES, _MESSAGE)
        with memoryview(piece).cast("B") as rest:
            return self._push_any(rest)

    def _push_any(self, rest: memoryview) -> bytes:
        sealed: list[bytes] = []
        at = 0
        if len(rest) and self._whole is not None:
            sealed.append(self._seal(self._whole, FRAME_BYTES, _MESSAGE))
            self._whole = None
        if self._filled and self._filled + len(rest) > FRAME_BYTES:
            at = FRAME_BYTES - self._filled
            self._held[self._filled :] = rest[:at]
            self._filled = 0
            sealed.append(self._seal(self._held_at, FRAME_BYTES, _MESSAGE))
        with ffi.from_buffer("unsigned char[]", rest) as source:
            while self._filled + len(rest) - at > FRAME_BYTES:
                sealed.append(self._seal(source + at, FRAME_BYTES, _MESSAGE))
                at += FRAME_BYTES
        kept = len(rest) - at
        self._held[self._filled : self._filled + kept] = rest[at:]
        self._filled += kept
        return sealed[0] if len(sealed) == 1 else b"".join(sealed)

    def finish(self) -> bytes:
        """The last frame."""
        if self._finished:
            raise RuntimeError("a stream is finished once")
        self._finished = True
        if self._whole is not None:
            return self._seal(self._whole, FRAME_BYTES, _FINAL)
        return self._seal(self._held_at, self._filled, _FINAL)

    def _seal(self, source: Any, length: int, tag: int) -> bytes:
        _push(self._state, self._out, _NULL, source, length, _NULL, 0, tag)
        frame: bytes = self._out_view[: length + OVERHEAD_BYTES]
        return frame


class Puller:
    """Opens a stream piece by piece, the header included.

    What `pull` returns is authentic and in order, but only `finish` tells that the stream was whole: act on
    the plaintext after that. All that is wrong with a stream is refused as `undecryptable`.
    """

    __slots__ = (
        "_at_header", "_ended", "_filled", "_frames", "_held", "_held_at", "_key", "_out", "_out_view",
        "_refused", "_state", "_tag",
    )  # fmt: skip

    def __init__(self, key: bytes) -> None:
        _check_key(key)
        self._key = key
        self._state = ffi.new("unsigned char[]", _STATE_BYTES)
        self._held_at = ffi.new("unsigned char[]", SEALED_FRAME_BYTES)
        self._held = ffi.buffer(self._held_at)
        self._filled = 0
        self._out = ffi.new("unsigned char[]", FRAME_BYTES)
        self._out_view = ffi.buffer(self._out)
        self._tag = ffi.new("unsigned char *")
        self._at_header = True
        self._frames = 0  # opened so far
        self._ended = False  # the frame tagged FINAL was read
        self._refused = False

    def pull(self, piece: Piece) -> bytes:
        """The plaintext of the frames that this piece completes; often none."""
        if self._refused:
            raise RuntimeError("a refused stream takes no more pieces")
        if isinstance(piece, bytes) and len(piece) == SEALED_FRAME_BYTES and not (self._filled or self._at_header):
            return self._open(piece, SEALED_FRAME_BYTES)
        with memoryview(piece).cast("B") as rest:
            at = self._read_header(rest) if self._at_header else 0
            opened: list[bytes] = []
            if self._filled and self._filled + len(rest) - at >= SEALED_FRAME_BYTES:
                taken = SEALED_FRAME_BYTES - self._filled
                self._held[self._filled :] = rest[at : at + taken]
                at += taken
                self._filled = 0
                opened.append(self._open(self._held_at, SEALED_FRAME_BYTES))
            with ffi.from_buffer("unsigned char[]", rest) as source:
                while self._filled + len(rest) - at >= SEALED_FRAME_BYTES:
                    opened.append(self._open(source + at, SEALED_FRAME_BYTES))
                    at += SEALED_FRAME_BYTES
            kept = len(rest) - at
            if kept and self._ended:
                raise self._refusal("bytes follow the last frame")
            self._held[self._filled : self._filled + kept] = rest[at:]
            self._filled += kept
        return opened[0] if len(opened) == 1 else b"".join(opened)

    def finish(self) -> bytes:
        """The plaintext of a last frame that is not full; refuses a stream that did not end here."""
        if self._refused:
            raise RuntimeError("a refused stream does not finish")
        if self._ended:
            return b""
        if self._at_header or self._filled < OVERHEAD_BYTES:
            raise self._refusal("the stream ends before its last frame")
        if self._frames and self._filled == OVERHEAD_BYTES:
            raise self._refusal("the last frame of several is empty")
        last = self._open(self._held_at, self._filled)
        if self._tag[0] != _FINAL:
            raise self._refusal("the stream ends before its last frame")
        return last

    def _read_header(self, rest: memoryview) -> int:
        """How many bytes of the piece belong to the header."""
        taken = min(HEADER_BYTES - self._filled, len(rest))
        self._held[self._filled : self._filled + taken] = rest[:taken]
        self._filled += taken
        if self._filled == HEADER_BYTES:
            lib.crypto_secretstream_xchacha20poly1305_init_pull(self._state, self._held_at, self._key)
            self._at_header = False
            self._filled = 0
        return taken

    def _open(self, source: Any, length: int) -> bytes:
        if self._ended:
            raise self._refusal("bytes follow the last frame")
        if _pull(self._state, self._out, _NULL, self._tag, source, length, _NULL, 0):
            raise self._refusal("a frame does not open under this key")
        tag = self._tag[0]
        if tag not in (_MESSAGE, _FINAL):
            raise self._refusal("a frame carries a tag that this format does not use")
        self._frames += 1
        self._ended = tag == _FINAL
        plaintext: bytes = self._out_view[: length - OVERHEAD_BYTES]
        return plaintext

    def _refusal(self, why: str) -> Refused:
        self._refused = True
        return Refused(why, code="undecryptable")


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a stream key has {KEY_BYTES} bytes, not {len(key)}")
