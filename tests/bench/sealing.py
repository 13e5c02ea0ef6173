"""Sealing and hashing, each against the primitive that bounds it, in one interleaved run."""

from collections.abc import Callable
from typing import Any

from nacl._sodium import ffi, lib

from common.box import SecretKey
from common.cid import UnixFsHasher
from common.container import Commitment, Opener, Sealer
from common.framing import FRAME_BYTES, HEADER_BYTES, SEALED_FRAME_BYTES
from common.keccak import Keccak256
from common.sealed_stream import BEFORE_FRAMES, HEAD_BYTES
from tests.bench.row import Row, interleaved

MB = 1e6
PIECE = bytes(range(256)) * 4096  # 1 MiB, as a socket or a file is read
IN_FRAMES = [PIECE[at : at + FRAME_BYTES] for at in range(0, len(PIECE), FRAME_BYTES)]
FRAMES = len(IN_FRAMES)
PIECES = 16
# what has to come before that many pieces to make a length that a container can have
HEAD = b"\x01" + bytes(HEAD_BYTES - 1 + HEADER_BYTES + SEALED_FRAME_BYTES - PIECES * len(PIECE) % SEALED_FRAME_BYTES)
ROUNDS = 15

SECRET = SecretKey(bytes(range(32)))
PLACE = (31337, bytes(20), bytes(20))


def _state() -> tuple[Any, Any]:
    state = ffi.new("unsigned char[]", lib.crypto_secretstream_xchacha20poly1305_statebytes())
    header = ffi.new("unsigned char[]", 24)
    lib.crypto_secretstream_xchacha20poly1305_init_push(state, header, bytes(32))
    return state, header


def push_alone() -> int:
    """The limit: libsodium pushing 64 KiB frames from one buffer into another."""
    state, _ = _state()
    source, out = ffi.from_buffer(PIECE), ffi.new("unsigned char[]", SEALED_FRAME_BYTES)
    for index in range(PIECES * FRAMES):
        at = source + index % FRAMES * FRAME_BYTES
        lib.crypto_secretstream_xchacha20poly1305_push(state, out, ffi.NULL, at, FRAME_BYTES, ffi.NULL, 0, 0)
    return PIECES * len(PIECE)


def seal() -> int:
    sealer = Sealer(SECRET.public, *PLACE)
    for _ in range(PIECES):
        for piece in IN_FRAMES:
            sealer.push(piece)
    sealer.finish()
    return PIECES * len(PIECE)


def _sealed_frames() -> tuple[Any, list[bytes]]:
    state, header = _state()
    out, sealed = ffi.new("unsigned char[]", SEALED_FRAME_BYTES), []
    for _ in range(PIECES * FRAMES):
        lib.crypto_secretstream_xchacha20poly1305_push(state, out, ffi.NULL, PIECE, FRAME_BYTES, ffi.NULL, 0, 0)
        sealed.append(bytes(ffi.buffer(out)))
    return header, sealed


def pull_alone() -> Callable[[], int]:
    """The limit: libsodium pulling the same frames into one buffer."""
    header, sealed = _sealed_frames()
    state, _ = _state()
    out, tag = ffi.new("unsigned char[]", FRAME_BYTES), ffi.new("unsigned char *")

    def run() -> int:
        lib.crypto_secretstream_xchacha20poly1305_init_pull(state, header, bytes(32))
        for frame in sealed:
            failed = lib.crypto_secretstream_xchacha20poly1305_pull(
                state, out, ffi.NULL, tag, frame, SEALED_FRAME_BYTES, ffi.NULL, 0
            )
            if failed:
                raise RuntimeError("the limit does not open its own frames")
        return PIECES * len(PIECE)

    return run


def open_(*, by_frames: bool) -> Callable[[], int]:
    """Open in pieces at frame boundaries, as a provider reads fetched content, or in pieces of 64 KiB, which it must
    join first (one more copy)."""
    sealer = Sealer(SECRET.public, *PLACE)
    whole = b"".join([sealer.push(PIECE) for _ in range(PIECES)]) + sealer.finish()
    size, first = (SEALED_FRAME_BYTES, BEFORE_FRAMES) if by_frames else (FRAME_BYTES, FRAME_BYTES)
    pieces = [whole[:first], *(whole[at : at + size] for at in range(first, len(whole), size))]

    def run() -> int:
        opener = Opener.with_secret(SECRET, *PLACE)
        for piece in pieces:
            opener.pull(piece)
        opener.finish()
        return PIECES * len(PIECE)

    return run


def both_alone() -> int:
    """The limit of a whole passage: each frame is pulled as soon as it is pushed."""
    pushing, header = _state()
    pulling, _ = _state()
    lib.crypto_secretstream_xchacha20poly1305_init_pull(pulling, header, bytes(32))
    source, sealed = ffi.from_buffer(PIECE), ffi.new("unsigned char[]", SEALED_FRAME_BYTES)
    out, tag = ffi.new("unsigned char[]", FRAME_BYTES), ffi.new("unsigned char *")
    for index in range(PIECES * FRAMES):
        at = source + index % FRAMES * FRAME_BYTES
        lib.crypto_secretstream_xchacha20poly1305_push(pushing, sealed, ffi.NULL, at, FRAME_BYTES, ffi.NULL, 0, 0)
        lib.crypto_secretstream_xchacha20poly1305_pull(
            pulling, out, ffi.NULL, tag, sealed, SEALED_FRAME_BYTES, ffi.NULL, 0
        )
    return PIECES * len(PIECE)


def seal_and_open() -> int:
    sealer, opener = Sealer(SECRET.public, *PLACE), Opener.with_secret(SECRET, *PLACE)
    opened = 0
    for _ in range(PIECES):
        for piece in IN_FRAMES:
            opened += len(opener.pull(sealer.push(piece)))
    opened += len(opener.pull(sealer.finish()) + opener.finish())
    return opened


def keccak_alone() -> int:
    hasher = Keccak256()
    for _ in range(PIECES):
        hasher.update(PIECE)
    hasher.digest()
    return PIECES * len(PIECE)


def upload_checked() -> int:
    """What an uploaded container passes: its commitment (keccak) and its content id (sha256)."""
    commitment, cid = Commitment(), UnixFsHasher()
    commitment.update(HEAD)
    for _ in range(PIECES):
        commitment.update(PIECE)
        cid.update(PIECE)
    commitment.finish()
    cid.finish()
    return PIECES * len(PIECE)


def rows() -> list[Row]:
    """The figures of "Sealing and hashing"."""
    measured: list[Row] = []

    def compare(against: str, limit: Callable[[], int], target: float, alternatives: dict[str, Any]) -> None:
        rates = interleaved({against: limit, **alternatives}, ROUNDS)
        for name in alternatives:
            measured.append(rates.row(name, name, against, against, target=target, unit="MB/s", scale=MB))

    compare("secretstream push alone", push_alone, 0.87, {"seal, 64 KiB pieces": seal})
    compare("secretstream pull alone", pull_alone(), 0.8, {"open, frame by frame": open_(by_frames=True)})
    compare("secretstream pull alone", pull_alone(), 0.75, {"open, 64 KiB pieces": open_(by_frames=False)})
    compare("push and pull alone", both_alone, 0.9, {"sealed and opened, 64 KiB pieces": seal_and_open})
    uploads = {"upload checked: commitment and content id": upload_checked}
    compare("keccak256 alone", keccak_alone, 0.75, uploads)
    return measured
