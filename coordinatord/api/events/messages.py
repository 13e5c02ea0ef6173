"""Messages of event streams: the bytes of `text/event-stream`."""

import random
from typing import Final

import msgspec

from common.api.events import JOB_EVENT_NAMES, EventKind, EventsReset, JobEvent
from common.api.progress import ProvisionalJob
from common.api.states import job_status
from common.scalars import hex_of
from coordinatord.api.events.events_sql import LoggedEvent
from coordinatord.base import metrics

HEARTBEAT: Final = b":\n\n"

_encode: Final = msgspec.json.Encoder().encode


def event_data(row: LoggedEvent) -> JobEvent | EventsReset:
    """Return the data of the message about an event."""
    if row.kind is EventKind.RESET:
        return EventsReset(str(row.id), "reset")
    return JobEvent(
        id=str(row.id),
        event=JOB_EVENT_NAMES[row.kind],
        taken_back=str(row.taken_back_id) if row.taken_back_id is not None else None,
        job_id=hex_of(row.job_id),
        owner=hex_of(row.owner),
        model_id=str(row.model_id),
        provider_id=str(row.provider_id),
        designated=str(row.designated),
        state=row.state,
        ended_because=row.ended_because,
        status=job_status(row.state, row.ended_because),
        block_number=str(row.block_number),
        block_time=str(row.block_time),
    )


def sse_message(name: str, data: bytes, event_id: int) -> bytes:
    """Return one message of a stream. `data` is JSON, which contains no line ends."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, name.encode(), data)


def event_message(row: LoggedEvent) -> bytes:
    """Return the message of an event. The message is encoded once, and stored with the event for all streams."""
    if row.message is None:
        event = event_data(row)
        text = sse_message("taken_back" if row.taken_back_id is not None else event.event, _encode(event), row.id)
        object.__setattr__(row, "message", text)
        return text
    return row.message


def progress_message(progress: ProvisionalJob) -> bytes:
    """Return a message without an id, because a reader that reconnects gets the newest progress."""
    return b"event: provisional\ndata: %s\n\n" % _encode(progress)


def opening_message(after: int) -> bytes:
    """Return the start of a stream: the pause before a reconnect, and the id that a client without events reconnects
    with."""
    return b"retry: %d\nid: %d\n\n" % (reconnect_delay_ms(), after)


def closing_message() -> bytes:
    """Return the last message of a stream that ends because its process stops. Count the stream in the metrics."""
    metrics.connections_ended.labels("listener", "stopping").inc()
    return b": this process stops: reconnect with Last-Event-ID\nretry: %d\n\n" % reconnect_delay_ms()


def reconnect_delay_ms() -> int:
    """Return a random number of milliseconds before a reconnect. Otherwise all clients of a process that stops would
    reconnect at the same moment."""
    return random.randint(500, 3_000)  # noqa: S311 - spreads load
