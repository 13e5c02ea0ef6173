"""Sealing and hashing, each against the primitive that bounds it, by CPU time."""

import time
from typing import Any

from nacl._sodium import ffi, lib

from common.box import SecretKey
from common.cid import UnixFsHasher
from common.container import CommitmentHasher, Opener, Sealer
from common.framing import FRAME_BYTES, HEADER_BYTES, SEALED_FRAME_BYTES
from common.keccak import Keccak256
from common.sealed_stream import HEAD_BYTES
from tests.bench.row import Row, interleaved

MB = 1e6
PIECE = bytes(range(256)) * 4096  # 1 MiB, as a socket or a file is read
IN_FRAMES = [PIECE[at : at + FRAME_BYTES] for at in range(0, len(PIECE), FRAME_BYTES)]
FRAMES = len(IN_FRAMES)
PIECES = 8
# Bytes before the pieces, so that the total is a valid length of a container.
HEAD = b"\x01" + bytes(HEAD_BYTES - 1 + HEADER_BYTES + SEALED_FRAME_BYTES - PIECES * len(PIECE) % SEALED_FRAME_BYTES)
SECONDS, TURN_S = 6, 0.1

SECRET = SecretKey(bytes(range(32)))
PLACE = (31337, bytes(20), bytes(20))


def _state() -> tuple[Any, Any]:
    state = ffi.new("unsigned char[]", lib.crypto_secretstream_xchacha20poly1305_statebytes())
    header = ffi.new("unsigned char[]", 24)
    lib.crypto_secretstream_xchacha20poly1305_init_push(state, header, bytes(32))
    return state, header


def both_alone() -> int:
    """Push each frame with the bare primitive, and pull it at once. This is the limit of sealing and opening."""
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
    commitment, cid = CommitmentHasher(), UnixFsHasher()
    commitment.update(HEAD)
    for _ in range(PIECES):
        commitment.update(PIECE)
        cid.update(PIECE)
    commitment.finish()
    cid.finish()
    return PIECES * len(PIECE)


def rows() -> list[Row]:
    sealing = interleaved({"libsodium": both_alone, "ours": seal_and_open}, SECONDS, TURN_S, time.process_time)
    uploads = interleaved({"keccak": keccak_alone, "ours": upload_checked}, SECONDS, TURN_S, time.process_time)
    against = "libsodium's secretstream alone"
    return [
        sealing.row("seal and open", "ours", "libsodium", against, target=0.9, unit="MB/s", scale=MB),
        uploads.row("upload checked", "ours", "keccak", "keccak256 alone", target=0.7, unit="MB/s", scale=MB),
    ]
