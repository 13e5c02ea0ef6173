import os
import tracemalloc

import pytest

from common.box import SecretKey
from common.refusal import Refused
from common.tab import channel
from common.tab.channel import DATA, Channel, ChannelBinding, Frame, OwnerHandshake, accept_hello

PLACE = ChannelBinding(31337, b"r" * 20, b"j" * 32)


def connected(place: ChannelBinding = PLACE) -> tuple[Channel, Channel]:
    owner, box = SecretKey.generate(), SecretKey.generate()
    handshake = OwnerHandshake(PLACE, owner, box.public)
    theirs, welcome = accept_hello(place, box, owner.public, Frame.parse(handshake.hello), b"welcome")
    ours, payload = handshake.finish(Frame.parse(welcome))
    assert payload == b"welcome"
    return ours, theirs


def received(channel_: Channel, frames: list[bytes]) -> bytes | None:
    return [channel_.open(Frame.parse(frame)) for frame in frames][-1]


@pytest.mark.parametrize("length", [0, 1, 65_518, 65_519, 1 << 20])
def test_messages_arrive_in_both_directions(length: int) -> None:
    ours, theirs = connected()
    message = os.urandom(length)
    assert received(theirs, ours.seal(message)) == message
    assert received(ours, theirs.seal(message)) == message


def test_message_above_the_limit_is_refused() -> None:
    with pytest.raises(Refused, match="1048576"):
        connected()[0].seal(bytes((1 << 20) + 1))


def test_parts_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = connected()
    frames = ours.seal(bytes(100_000))
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", 70_000)
    with pytest.raises(Refused):
        received(theirs, frames)


def test_empty_parts_use_no_memory() -> None:
    ours, theirs = connected()
    more = [Frame(DATA, ours.id, ours._outgoing.encrypt(b"\x01")) for _ in range(20_000)]
    tracemalloc.start()
    for frame in more:
        theirs.open(frame)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 20_000
    assert received(theirs, ours.seal(b"end")) == b"end"


def test_hello_of_another_owner_is_refused() -> None:
    box = SecretKey.generate()
    hello = Frame.parse(OwnerHandshake(PLACE, SecretKey.generate(), box.public).hello)
    with pytest.raises(Refused):
        accept_hello(PLACE, box, SecretKey.generate().public, hello, b"")


def test_hello_of_another_tab_is_refused() -> None:
    with pytest.raises(Refused):
        connected(ChannelBinding(31337, b"r" * 20, b"k" * 32))


def test_welcome_without_the_box_key_is_refused() -> None:
    owner, box = SecretKey.generate(), SecretKey.generate()
    handshake = OwnerHandshake(PLACE, owner, box.public)
    impostor = SecretKey.generate()
    forged = OwnerHandshake(PLACE, owner, impostor.public)
    _, welcome = accept_hello(PLACE, impostor, owner.public, Frame.parse(forged.hello), b"")
    with pytest.raises(Refused):
        handshake.finish(Frame(channel.WELCOME, handshake.channel_id, Frame.parse(welcome).body))


def test_replayed_hello_gives_other_keys() -> None:
    owner, box = SecretKey.generate(), SecretKey.generate()
    handshake = OwnerHandshake(PLACE, owner, box.public)
    hello = Frame.parse(handshake.hello)
    accept_hello(PLACE, box, owner.public, hello, b"")
    replayed, _ = accept_hello(PLACE, box, owner.public, hello, b"")
    _, welcome = accept_hello(PLACE, box, owner.public, hello, b"")
    ours, _ = handshake.finish(Frame.parse(welcome))
    with pytest.raises(Refused):
        received(replayed, ours.seal(b"x"))


@pytest.mark.parametrize("raw", [b"", b"\x01" * 8, b"\x00" * 20, b"\x05" * 20, bytes(65_545)])
def test_other_bytes_are_no_frame(raw: bytes) -> None:
    with pytest.raises(Refused):
        Frame.parse(raw)
