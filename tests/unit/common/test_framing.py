"""Streams of frames: round trips at every chunk boundary, every malformed stream, and the memory that they take."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings

from common.framing import FRAME_BYTES, SEALED_FRAME_BYTES, FrameOpener, FrameSealer, is_sealed_length, sealed_length
from common.refusal import Refused
from tests.vectors.sealing import FINAL, MESSAGE, PUSH, stream
from tests.vectors.vector_file import pattern

KEY = bytes(range(32))
HEADER = bytes(24)

# Lengths around the frames' edges, and chunks that end on either side of an edge.
LENGTHS = st.one_of(
    st.integers(0, 300), st.builds(lambda n, d: max(0, n * FRAME_BYTES + d), st.integers(0, 3), st.integers(-2, 2))
)
PIECES = st.one_of(
    st.integers(1_000, 200_000),
    st.sampled_from([FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, SEALED_FRAME_BYTES, 20 * FRAME_BYTES]),
)
KINDS = st.sampled_from([bytes, bytearray, memoryview])


def in_pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def pushed(plaintext: bytes, size: int = 1 << 20, kind: type = bytes) -> bytes:
    pusher = FrameSealer(KEY)
    return (
        pusher.header + b"".join([pusher.push(kind(piece)) for piece in in_pieces(plaintext, size)]) + pusher.finish()
    )


def pulled(sealed: bytes, size: int = 1 << 20, kind: type = bytes) -> bytes:
    puller = FrameOpener(KEY)
    return b"".join([puller.pull(kind(piece)) for piece in in_pieces(sealed, size)]) + puller.finish()


def refusal(sealed: bytes, size: int = 1 << 20) -> Refused:
    with pytest.raises(Refused) as caught:
        pulled(sealed, size)
    assert caught.value.code == "undecryptable"
    return caught.value


@given(LENGTHS, PIECES, PIECES, KINDS)
def test_any_pieces_of_any_buffer_kind_round_trip(length: int, size_in: int, size_out: int, kind: type) -> None:
    plaintext = pattern(length)
    sealed = pushed(plaintext, size_in, kind)
    assert len(sealed) == sealed_length(length)
    assert pulled(sealed, size_out, kind) == plaintext


@pytest.mark.parametrize("size", [1_000, FRAME_BYTES, SEALED_FRAME_BYTES, 3 * FRAME_BYTES])
def test_interleaved_streams_are_independent(size: int) -> None:
    texts = [pattern(3 * FRAME_BYTES + 5), bytes(3 * FRAME_BYTES + 5)]
    whole = [pushed(text) for text in texts]
    pullers, opened = [FrameOpener(KEY), FrameOpener(KEY)], [b"", b""]
    for at in range(0, len(whole[0]), size):
        for n, puller in enumerate(pullers):
            piece = bytearray(whole[n][at : at + size])
            opened[n] += puller.pull(piece)
            assert piece == whole[n][at : at + size]
    assert [opened[n] + puller.finish() for n, puller in enumerate(pullers)] == texts


def test_empty_pieces_change_nothing() -> None:
    pusher = FrameSealer(KEY)
    sealed = pusher.header + pusher.push(b"") + pusher.push(b"text") + pusher.push(b"") + pusher.finish()
    puller = FrameOpener(KEY)
    assert puller.pull(b"") + puller.pull(sealed) + puller.pull(b"") + puller.finish() == b"text"


def test_pushed_frames_are_readable_by_libsodium() -> None:
    plaintext = pattern(2 * FRAME_BYTES)
    sealed = pushed(plaintext, 50_000)
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, sealed[:24], KEY)
    frames = [
        bindings.crypto_secretstream_xchacha20poly1305_pull(state, frame)
        for frame in in_pieces(sealed[24:], SEALED_FRAME_BYTES)
    ]
    assert frames == [(plaintext[:FRAME_BYTES], MESSAGE), (plaintext[FRAME_BYTES:], FINAL)]


def test_accepted_lengths_are_those_of_some_plaintext() -> None:
    real = {sealed_length(length) for length in range(2 * FRAME_BYTES + 40)}
    assert all(is_sealed_length(length) == (length in real) for length in range(max(real)))


@pytest.mark.parametrize("length", [0, 1, 23, 24, 40, 41, 50])
def test_a_short_stream_that_was_cut_is_refused(length: int) -> None:
    refusal(pushed(b"ten bytes.")[:length])


@pytest.mark.parametrize("size", [1_000, SEALED_FRAME_BYTES, 1 << 20])
def test_a_stream_cut_at_a_frame_boundary_is_refused(size: int) -> None:
    sealed = pushed(pattern(2 * FRAME_BYTES + 5))
    for frames in (0, 1, 2):
        refusal(sealed[: 24 + frames * SEALED_FRAME_BYTES], size)


@pytest.mark.parametrize("size", [1, 7, SEALED_FRAME_BYTES, 1 << 20])
@pytest.mark.parametrize("trailing", [1, 17, SEALED_FRAME_BYTES])
def test_bytes_after_a_full_last_frame_are_refused_at_once(trailing: int, size: int) -> None:
    puller = FrameOpener(KEY)
    assert puller.pull(pushed(pattern(FRAME_BYTES))) == pattern(FRAME_BYTES)
    with pytest.raises(Refused, match="bytes follow the last frame"):
        puller.pull(bytes(trailing)[:size])


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([(b"one", MESSAGE)], "ends before its last frame"),
        ([(pattern(FRAME_BYTES), MESSAGE)], "ends before its last frame"),
        ([(pattern(FRAME_BYTES), MESSAGE), (b"", FINAL)], "the last frame is empty, but other frames precede it"),
        ([(b"short", MESSAGE), (b"rest", FINAL)], "cannot be decrypted"),
        ([(pattern(FRAME_BYTES - 1), MESSAGE), (b"rest", FINAL)], "cannot be decrypted"),
        ([(pattern(FRAME_BYTES + 1), FINAL)], "cannot be decrypted"),
        ([(b"flushed", PUSH)], "a tag that this format does not use"),
        ([(pattern(FRAME_BYTES), PUSH), (b"rest", FINAL)], "a tag that this format does not use"),
    ],
)
def test_authentic_frames_in_another_shape_are_refused(frames: list[tuple[bytes, int]], why: str) -> None:
    assert why in str(refusal(stream(KEY, HEADER, frames)))


def test_frames_that_changed_places_are_refused() -> None:
    sealed = pushed(pattern(2 * FRAME_BYTES + 5))
    first, second = (sealed[24 : 24 + SEALED_FRAME_BYTES], sealed[24 + SEALED_FRAME_BYTES :][:SEALED_FRAME_BYTES])
    refusal(sealed[:24] + second + first + sealed[24 + 2 * SEALED_FRAME_BYTES :])


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_a_bug_of_the_caller(length: int) -> None:
    for made in (FrameSealer, FrameOpener):
        with pytest.raises(ValueError, match="32 bytes"):
            made(bytes(length))


def test_finished_stream_rejects_more_data() -> None:
    pusher = FrameSealer(KEY)
    pusher.finish()
    with pytest.raises(RuntimeError):
        pusher.push(b"more")
    with pytest.raises(RuntimeError):
        pusher.finish()


def test_a_refused_stream_stays_refused() -> None:
    sealed = bytearray(pushed(pattern(FRAME_BYTES + 1)))
    sealed[100] ^= 1
    puller = FrameOpener(KEY)
    with pytest.raises(Refused):
        puller.pull(sealed)
    with pytest.raises(RuntimeError):
        puller.pull(sealed)
    with pytest.raises(RuntimeError):
        puller.finish()


def test_stream_in_a_reference_cycle_is_collected() -> None:
    """Runs in a subprocess, because a regression would crash the interpreter during garbage collection."""
    program = """
import gc
from common.framing import FrameOpener
def refused():
    puller = FrameOpener(bytes(32))
    try:
        puller.pull(bytes(200))
        puller.finish()
    except ValueError as refusal:
        kept = refusal  # a cycle: the traceback refers to this frame, and the frame to `kept`
gc.disable()
for _ in range(10):
    refused()
    gc.collect()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


MIB = 1 << 20

# Run every step of a payload in one process that reports its own peak memory.
PASS = """
import re
from collections.abc import Iterator
from pathlib import Path

from common.box import SecretKey
from common.cid import UnixFsHasher
from common.container import CommitmentHasher, Opener, Sealer

MIB = 1 << 20
secret, place = SecretKey(bytes(range(32))), (1, bytes(20), bytes(20))


def peak() -> int:
    # not getrusage: a new process starts with its parent's ru_maxrss, which would hide growth below it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])


def sealed(payload: Iterator[bytes]) -> Iterator[bytes]:
    sealer = Sealer(secret.public, *place)
    for piece in payload:
        yield sealer.push(piece)
    yield sealer.finish()


before = peak()
opener, commitment, cid, opened = Opener.with_secret(secret, *place), CommitmentHasher(), UnixFsHasher(), 0
for piece in sealed(bytes(MIB) for _ in range(200)):
    commitment.update(piece)
    cid.update(piece)
    opened += len(opener.pull(piece))
opened += len(opener.finish())
commitment.finish()
cid.finish()
print(opened, peak() - before)
"""


def test_two_hundred_mib_pass_in_constant_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PASS], capture_output=True, text=True, check=True)
    opened, grown = map(int, done.stdout.split())
    assert opened == 200 * MIB
    assert grown <= 32 * MIB
