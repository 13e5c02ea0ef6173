"""Sealed bytes and their plaintexts: frames, containers, results, envelopes, boxes, handovers, channels of tabs."""

import json
from pathlib import Path
from typing import Final

from nacl import bindings

from common import box, container, escrow_handover, framing, sealed_result, sealed_stream
from common.box import SecretKey
from common.envelope import Envelope, ResultBody
from common.refusal import Refused
from common.tab.channel import Channel, ChannelBinding, Frame, OwnerHandshake, accept_hello
from common.tab.messages import encode, read_owner_message, read_provider_message
from tests.fuzz.target import Target, cut, refused

VECTORS: Final = Path(__file__).parents[1] / "vectors"
_KEY: Final = bytes(range(32))
_SECRET: Final = SecretKey(bytes(range(1, 33)))
_OWNER: Final = bytes(20)
_MESSAGE, _PUSH, _REKEY, _FINAL = 0, 1, 2, 3
_LENGTHS: Final = (0, 1, 2, 17, 1000, 65_535, 65_536, 65_536)


def _pulled(pieces: list[bytes]) -> bytes:
    puller = framing.FrameOpener(_KEY)
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

    def piecewise() -> container.ContainerCommitment:
        commitment = container.CommitmentHasher()
        for piece in cut(data):
            commitment.update(piece)
        return commitment.finish()

    def code(act: object) -> object:
        try:
            return act()  # type: ignore[operator]
        except Refused as refusal:
            assert refusal.code is not None
            return refusal.code

    whole = code(lambda: container.commitment_of(data))
    assert whole == code(piecewise)
    if isinstance(whole, container.ContainerCommitment):
        container.check_commitment(data, whole.c)
        head = sealed_stream.ContainerHead.parse(data)
        assert head.encode() == data[: sealed_stream.HEAD_BYTES]
    for open_it in (
        lambda: container.open_with_data_key(_KEY, data),
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
    read = refused(lambda: escrow_handover.Handover.parse(bytearray(data)))
    if read is not None:
        assert bytes(escrow_handover.handover_content(read.release, read.keys)) + read.signature == data


def check_tab_messages(data: bytes) -> None:
    """Check that a message that is read is written back with the same meaning."""
    for read in (read_owner_message, read_provider_message):
        message = refused(lambda read=read: read(data))
        if message is not None:
            assert read(encode(message)) == message


_PLACE: Final = ChannelBinding(1, _OWNER, _KEY)
_OWNERS_KEY: Final = SecretKey(bytes(range(2, 34)))


def _channels() -> tuple[OwnerHandshake, Channel, bytes]:
    handshake = OwnerHandshake(_PLACE, _OWNERS_KEY, _SECRET.public)
    provider, welcome = accept_hello(_PLACE, _SECRET, _OWNERS_KEY.public, Frame.parse(handshake.hello), b"welcome")
    return handshake, provider, welcome


def check_tab_channel(data: bytes) -> None:
    """Check foreign bytes as each frame, and a data frame with one changed byte. Both are refused."""
    frame = refused(lambda: Frame.parse(data))
    if frame is not None:
        handshake, provider, _ = _channels()
        assert frame.encode() == data
        assert refused(lambda: accept_hello(_PLACE, _SECRET, _OWNERS_KEY.public, frame, b"")) is None
        assert refused(lambda: handshake.finish(frame)) is None
        assert refused(lambda: provider.open(frame)) is None
    handshake, provider, welcome = _channels()
    ours, _ = handshake.finish(Frame.parse(welcome))
    message = data[4:]
    (sealed,) = ours.seal(message)
    place, change = int.from_bytes(data[:3], "big") % len(sealed), data[3] if len(data) > 3 else 0
    spoilt = sealed[:place] + bytes((sealed[place] ^ change,)) + sealed[place + 1 :]
    assert refused(lambda: provider.open(Frame.parse(spoilt))) == (None if change else message)


def _cases(name: str) -> list[dict[str, object]]:
    return list(json.loads((VECTORS / name).read_bytes())["cases"])


def _plaintexts() -> list[bytes]:
    texts = [case[key] for case in _cases("envelope.json") for key in ("text", "canonical", "plaintext") if key in case]
    return [str(text).encode("utf-8", "surrogatepass") for text in texts]


def _handovers() -> list[bytes]:
    return [bytes.fromhex(str(case["message"])) for case in _cases("handover.json") if "message" in case]


def _tab_frames() -> list[bytes]:
    given = [case["given"] for case in _cases("tab.json") if "given" in case]
    return [bytes.fromhex(frame[2:]) for frames in given if isinstance(frames, list) for frame in frames]


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
    Target(
        "tab-messages",
        check_tab_messages,
        lambda: [str(case["text"]).encode() for case in _cases("tab.json") if "text" in case],
        (b'"t":"request"', b'"t":"ack"', b'"t":"delta"', b'"t":"answer"', b'"t":"welcome"', b'"voucher"', b'"chunks"'),
    ),
    Target("tab-channel", check_tab_channel, _tab_frames),
)
