import pytest

from svc.wire.server_sent_events import EventReader

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
