import json
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from common.api.events import EventKind
from coordinatord.api.events import listeners, messages, progress_hub
from coordinatord.api.events.connection_limits import ConnectionLimits
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.listeners import MAX_EVENTS_PER_PIECE, Listener, stream_events
from coordinatord.api.events.messages import HEARTBEAT, event_message
from coordinatord.api.events.progress_hub import MAX_READ_PAUSE_S, ProgressHub
from coordinatord.base.errors import Retryable

JOB, OWNER = b"\x07" * 32, b"\xaa" * 20


def claimed(id_: int, takes_back: int | None = None) -> LoggedEvent:
    return LoggedEvent(id_, EventKind.CLAIMED, 43, 1_800_000_030, JOB, OWNER, 1, 2, 3, 1, 0, takes_back)


def told(text: bytes) -> tuple[dict[str, str], dict[str, object]]:
    """Return a message's fields by name, and its data."""
    lines = dict(line.split(": ", 1) for line in text.decode().removesuffix("\n\n").split("\n"))
    return lines, json.loads(lines.pop("data"))


def test_event_is_a_message_with_its_id_name_and_data() -> None:
    lines, data = told(event_message(claimed(12)))
    assert lines == {"id": "12", "event": "claimed"}
    assert data == {
        "id": "12",
        "event": "claimed",
        "taken_back": None,
        "job_id": "0x" + JOB.hex(),
        "owner": "0x" + OWNER.hex(),
        "model_id": "1",
        "provider_id": "2",
        "designated": "3",
        "state": 1,
        "ended_because": 0,
        "status": "in_progress",
        "block_number": "43",
        "block_time": "1800000030",
    }


def test_reverted_events_and_resets_are_marked() -> None:
    lines, data = told(event_message(claimed(13, takes_back=12)))
    assert (lines["event"], data["event"], data["taken_back"]) == ("taken_back", "claimed", "12")
    lines, data = told(event_message(LoggedEvent(14, EventKind.RESET, 1, 1)))
    assert (lines, data) == ({"id": "14", "event": "reset"}, {"id": "14", "event": "reset"})


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (EventFilter(), True),
        (EventFilter(job_id=JOB, owner=OWNER, model_id=1, provider_id=2, state=1), True),
        (EventFilter(provider_id=3), True),  # designated to this provider
        (EventFilter(provider_id=4), False),
        (EventFilter(state=2), False),
        (EventFilter(owner=b"\xbb" * 20), False),
        (EventFilter(model_id=1, job_id=b"\x08" * 32), False),
    ],
)
def test_filter_passes_matching_events_and_resets(wanted: EventFilter, passes: bool) -> None:
    assert wanted.matches(claimed(1)) is passes
    assert wanted.matches(claimed(2, takes_back=1)) is passes
    assert wanted.matches(LoggedEvent(1, EventKind.RESET, 1, 1))


async def test_stream_has_an_id_heartbeats_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HEARTBEAT_INTERVAL_S", 0.01)
    listener = Listener(EventFilter())
    pieces = stream_events(listener, 11)
    first = (await anext(pieces)).decode()
    assert first.startswith("retry: ")
    assert first.endswith("\nid: 11\n\n")
    assert await anext(pieces) == HEARTBEAT
    listener.notify([claimed(12)])
    listener.notify([claimed(13, takes_back=12)])
    listener.wake()
    assert await anext(pieces) == event_message(claimed(12)) + event_message(claimed(13, takes_back=12))
    listener.end()
    assert b"reconnect with Last-Event-ID\nretry: " in await anext(pieces)
    assert [piece async for piece in pieces] == []


async def test_present_state_is_sent_first_and_once() -> None:
    listener = Listener(EventFilter())
    pieces = stream_events(listener, 12, claimed(12))
    listener.notify([claimed(11)])
    listener.notify([claimed(13, takes_back=11)])
    assert (await anext(pieces)).endswith(b"id: 12\n\n")
    assert await anext(pieces) == event_message(claimed(12))
    assert await anext(pieces) == event_message(claimed(13, takes_back=11))


async def test_reader_that_falls_behind_gets_a_reset_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener's memory is bounded. After the reset, it gets the events that follow."""
    monkeypatch.setattr(listeners, "MAX_EVENTS_BEHIND", 3)
    listener = Listener(EventFilter())
    for n in range(2):
        listener.notify([claimed(n)] * 2)
    assert [event.id for event in await listener.wait()] == [0, 0, 1, 1]
    for n in range(4):
        listener.notify([claimed(n)] * 2)
    events = await listener.wait()
    assert [(event.id, event.kind) for event in events] == [
        (2, EventKind.RESET),
        (3, EventKind.CLAIMED),
        (3, EventKind.CLAIMED),
    ]


async def test_changed_progress_follows_the_events_of_its_moment() -> None:
    listener = Listener(EventFilter())
    changes = [b"", b"first", b"", b"second"]

    async def progress() -> bytes:
        return changes.pop(0)

    pieces = stream_events(listener, 1, None, progress)
    await anext(pieces)
    listener.notify([claimed(12)])
    assert [await anext(pieces), await anext(pieces)] == [event_message(claimed(12)), b"first"]
    listener.notify([claimed(13)])
    assert await anext(pieces) == event_message(claimed(13))
    listener.wake()
    assert await anext(pieces) == b"second"


def test_event_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    event = claimed(12)
    first = event_message(event)
    monkeypatch.setattr(messages, "event_data", None)
    assert event_message(event) is first


async def test_reader_that_lags_is_sent_bounded_pieces() -> None:
    listener = Listener(EventFilter())
    pieces = stream_events(listener, 1)
    await anext(pieces)
    for n in range(1_000):
        listener.notify([claimed(n)])
    sent = b""
    while sent.count(b"\n\n") < 1_000:
        piece = await anext(pieces)
        assert piece.count(b"\n\n") <= MAX_EVENTS_PER_PIECE
        sent += piece
    assert sent == b"".join(event_message(claimed(n)) for n in range(1_000))


async def test_wait_ends_with_the_first_thing_that_comes() -> None:
    listener = Listener(EventFilter())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.wait)
            await anyio.wait_all_tasks_blocked()
            listener.notify([claimed(1)])


def test_callers_and_the_process_have_so_many_places_and_no_more() -> None:
    connection_limits = ConnectionLimits(max_total=3, max_per_caller=2)
    with connection_limits.count_connection("a", "stream"), connection_limits.count_connection("a", "poll"):
        assert not connection_limits.has_room("a")
        with (
            pytest.raises(Retryable, match="at most 2 event streams") as busy,
            connection_limits.count_connection("a", "stream"),
        ):
            pass
        assert busy.value.kind == "busy"
        with connection_limits.count_connection("b", "stream"):
            assert not connection_limits.has_room("c")
            with (
                pytest.raises(Retryable, match="already has 3 event streams") as full,
                connection_limits.count_connection("c", "stream"),
            ):
                pass
            assert full.value.kind == "not_ready"
    assert connection_limits.has_room("a")
    assert not connection_limits._open_by_caller


async def test_slow_read_delays_the_stream_by_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 100.0, []

    async def time_out(_source: Any, _job_ids: list[bytes]) -> dict[bytes, Any]:
        nonlocal now
        now += 30
        raise Retryable("not_ready", "the database did not answer")

    async def sleep_until(deadline: float) -> None:
        pauses.append(max(0.0, deadline - now))

    monkeypatch.setattr(progress_hub, "read_jobs_with_ops", time_out)
    monkeypatch.setattr(anyio, "current_time", lambda: now)
    monkeypatch.setattr(anyio, "sleep_until", sleep_until)
    with ProgressHub(Mock(), Mock()).follow(b"\1" * 32, Mock()) as read_if_changed:
        assert [await read_if_changed() for _ in range(2)] == [b"", b""]
    assert pauses == [0.0, MAX_READ_PAUSE_S]
