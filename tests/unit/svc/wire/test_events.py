"""Reading server-sent events: each message is returned when complete, for any split of the bytes."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from svc.errors import ConnectionFailed
from svc.wire.events import read_messages
from svc.wire.server_sent_events import EventReader

TEXT = b'retry: 5\nid: 1\n\n:\n\nid: 2\r\nevent: claimed\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:x\n\ndata: not whole'


async def pieces(text: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_complete_messages_are_returned_without_comments(size: int) -> None:
    data = [each async for each in read_messages(pieces(TEXT, size)) if each is not None]
    assert data == [b'{"a":\n1}', b"x"]


@pytest.mark.parametrize("endless", [b"data: " + b"x" * 2_000_000, b"data: xxxx\n" * 200_000])
async def test_message_without_an_end_is_not_kept(endless: bytes) -> None:
    async with aclosing(pieces(endless, 65_536)) as source:  # type: ignore[type-var] # a generator
        with pytest.raises(ConnectionFailed):
            _ = [each async for each in read_messages(source)]


async def test_long_message_in_small_pieces_takes_linear_time() -> None:
    began = time.process_time()
    given = [each async for each in read_messages(pieces(b"data: " + b"x" * 150_000 + b"\n\n", 1)) if each is not None]
    assert time.process_time() - began < 3  # copying the buffer for each piece would take longer
    assert given == [b"x" * 150_000]


STREAM = (
    'event: x\r\ndata: {"a":\u2028"é"}\r\n\r\n: comment\n\ndata:1\ndata: 2\n\nid: 7\rdata: 3\r\rdata: [DONE]\n\n'
).encode()
EVENTS = ['{"a":\u2028"é"}'.encode(), b"1\n2", b"3", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_events_are_independent_of_chunking(size: int) -> None:
    reader = EventReader()
    found = [event for at in range(0, len(STREAM), size) for event in reader.feed(STREAM[at : at + size])]
    assert found == EVENTS


def test_unfinished_event_is_ignored() -> None:
    assert EventReader().feed(b"data: half\n") == []
