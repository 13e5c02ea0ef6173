"""Sealed bytes and their plaintexts: frames, containers, results, envelopes, boxes, handovers."""

import json
from pathlib import Path
from typing import Final

from nacl import bindings

from common import box, container, escrow, framing, sealed_result, sealed_stream
from common.box import SecretKey
from common.envelope import Envelope, ResultBody
from common.refusal import Refused
from tests.fuzz.target import Target, cut, refused

VECTORS: Final = Path(__file__).parents[1] / "vectors"
_KEY: Final = bytes(range(32))
_SECRET: Final = SecretKey(bytes(range(1, 33)))
_OWNER: Final = bytes(20)
_MESSAGE, _PUSH, _REKEY, _FINAL = 0, 1, 2, 3
_LENGTHS: Final = (0, 1, 2, 17, 1000, 65_535, 65_536, 65_536)


def _pulled(pieces: list[bytes]) -> bytes:
    puller = framing.Puller(_KEY)
    return b"".join([*map(puller.pull, pieces), puller.finish()])


def check_frames(data: bytes) -> None:
    """Check frames of any tags and lengths under the right key. Only the canonical framing is accepted."""
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    stream = bytearray(bindings.crypto_secretstream_xchacha20poly1305_init_push(state, _KEY))
    plan = [(_LENGTHS[byte & 7], byte >> 3 & 3) for byte in data[:6]]
    for length, tag in plan:
        stream += bindings.crypto_secretstream_xchacha20poly1305_push(state, bytes(length), tag=tag)
    for byte in data[6:9]:  # corrupt a few bytes
        if stream and byte:
            stream[byte * 251 % len(stream)] ^= byte
    spoilt = any(data[6:9])
    raw = bytes(stream)
    opened = refused(lambda: _pulled([raw]))
    size = 1 + sum(data[:9]) * 97
    assert opened == refused(lambda: _pulled([raw[at : at + size] for at in range(0, len(raw), size)]))
    *inner, last = plan or [(0, _MESSAGE)]
    whole = (
        all(frame == (framing.FRAME_BYTES, _MESSAGE) for frame in inner)
        and last[1] == _FINAL
        and (last[0] > 0 or not inner)
    )
    if whole and not spoilt:
        assert opened == bytes(sum(length for length, _ in plan))
        assert len(raw) == framing.sealed_length(len(opened or b""))
    elif not whole:
        assert opened is None


def check_container(data: bytes) -> None:
    """Check that a commitment in pieces equals that of the whole, and that invalid containers are refused with a
    code."""

    def piecewise() -> container.Committed:
        commitment = container.Commitment()
        for piece in cut(data):
            commitment.update(piece)
        return commitment.finish()

    def code(act: object) -> object:
        try:
            return act()  # type: ignore[operator]
        except Refused as refusal:
            assert refusal.code is not None
            return refusal.code

    whole = code(lambda: container.commit(data))
    assert whole == code(piecewise)
    if isinstance(whole, container.Committed):
        container.check_container(data, whole.c)
        head = sealed_stream.ContainerHead.parse(data)
        assert head.encode() == data[: sealed_stream.HEAD_BYTES]
    for open_it in (
        lambda: container.open_with_dek(_KEY, data),
        lambda: container.open_with_secret(_SECRET, 1, _OWNER, _OWNER, data),
        lambda: sealed_result.open_result(_SECRET, 1, _OWNER, _KEY, data),
    ):
        assert isinstance(code(open_it), str | bytes)
    box.open_sealed(_SECRET, data)


def _containers() -> list[bytes]:
    return [container.seal(_SECRET.public, 1, _OWNER, _OWNER, b"a payload"), bytes([1]) * 122, b"\x02" * 130]


def check_plaintexts(data: bytes) -> None:
    """Check that only the canonical encoding is accepted."""
    for kind in (Envelope, ResultBody):
        read = refused(lambda kind=kind: kind.parse(data))
        assert read is None or read.encode() == data


def check_handover(data: bytes) -> None:
    read = refused(lambda: escrow.Handover.parse(bytearray(data)))
    if read is not None:
        assert bytes(escrow.content(read.release, read.keys)) + read.signature == data


def _cases(name: str) -> list[dict[str, object]]:
    return list(json.loads((VECTORS / name).read_bytes())["cases"])


def _plaintexts() -> list[bytes]:
    texts = [case[key] for case in _cases("envelope.json") for key in ("text", "canonical", "plaintext") if key in case]
    return [str(text).encode("utf-8", "surrogatepass") for text in texts]


def _handovers() -> list[bytes]:
    return [bytes.fromhex(str(case["message"])) for case in _cases("handover.json") if "message" in case]


TARGETS: Final = (
    Target("frames", check_frames, lambda: [b"\x18", b"\x19", b"\x06\x19", b"\x06\x06\x1e\0\0\0\1"], longest=9),
    Target("container", check_container, _containers),
    Target(
        "plaintexts",
        check_plaintexts,
        _plaintexts,
        (
            b'"custom_id"',
            b'"input"',
            b'"model"',
            b'"owner"',
            b'"result_key"',
            b'"v":1',
            b'"job_id"',
            b'"usage"',
            b'"0x',
        ),
    ),
    Target("handover", check_handover, _handovers),
)
