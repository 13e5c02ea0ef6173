"""The checks of event streams and webhooks fail if an event is missing, invented or badly signed."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import asyncpg

from common.webhooks import read_secret, signed_headers
from tests.soak.timeline import Timeline
from tests.soak.traffic.hooks import Got, Hook, HookWork, Receiver
from tests.soak.traffic.streams import StreamWork

OWNER = b"\xaa" * 20
ADDRESS = "0x" + OWNER.hex()
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
SECRET = "whsec_" + "A" * 32


async def log_events(database_url: str, count: int) -> tuple[int, list[int]]:
    """Log events of the owner, and mark them as passed on to webhooks. Return the newest id before, and theirs."""
    connection = await asyncpg.connect(database_url)
    try:
        before = await connection.fetchval("select max(id) from events")
        rows = await connection.fetch(
            "insert into events (kind, block_number, block_time, job_id, owner) select 0, 1, 1, '\\x01', $1"
            " from generate_series(1, $2) returning id",
            OWNER,
            count,
        )
        await connection.execute("update webhook_position set event_id = (select max(id) from events)")
    finally:
        await connection.close()
    return before, [row["id"] for row in rows]


def reader(*messages: tuple[int, str | None]) -> StreamWork:
    streams = StreamWork(Timeline())
    for event_id, name in messages:
        streams.take(streams.histories.setdefault(1, []), event_id, name)
    return streams


async def test_event_that_a_stream_leaves_out_is_found(database_url: str) -> None:
    before, (first, _, third) = await log_events(database_url, 3)
    streams = reader((before, None), (first, "posted"), (third, "posted"))
    assert "missed 1 events" in "".join(await streams.missed_events(database_url))


async def test_event_that_the_log_lacks_is_found(database_url: str) -> None:
    before, (only,) = await log_events(database_url, 1)
    assert "not in the log" in "".join(await reader((before, None), (only + 1, "posted")).missed_events(database_url))


async def test_reset_excuses_what_a_stream_missed(database_url: str) -> None:
    before, (_, second, third) = await log_events(database_url, 3)
    streams = reader((before, None), (second, "reset"), (third, "posted"))
    assert await streams.missed_events(database_url) == []


def test_event_told_twice_is_a_complaint() -> None:
    streams = reader((1, None), (2, "posted"), (2, "posted"))
    assert "event 2 after event 2" in streams.timeline.complaints[0]


def hooks(after: int, *messages: dict[str, Any], secret: str = SECRET) -> HookWork:
    work = HookWork(Receiver(), Timeline())
    work.hooks[ADDRESS] = Hook("whk_1", SECRET, OWNER, after, LONG_AGO)
    for n, message in enumerate(messages):
        body = json.dumps(message).encode()
        headers = signed_headers(read_secret(secret), f"msg_{n}", int(time.time()), body)
        work.receiver.inboxes.setdefault(ADDRESS, {})[f"msg_{n}"] = Got(headers, body)
    return work


def posted(event_id: int) -> dict[str, Any]:
    return {"type": "job.posted", "data": {"id": str(event_id)}}


async def test_event_that_is_not_posted_is_found(database_url: str) -> None:
    before, (first, _) = await log_events(database_url, 2)
    (found,) = await hooks(before, posted(first)).undelivered(database_url, 0.1)
    assert "1 events were not posted" in found


async def test_wrong_signature_is_found(database_url: str) -> None:
    before, (only,) = await log_events(database_url, 1)
    (found,) = await hooks(before, posted(only), secret="whsec_" + "B" * 32).undelivered(database_url, 0.1)
    assert "wrong signature" in found


async def test_end_of_a_batch_that_is_not_posted_is_found(database_url: str) -> None:
    before, _ = await log_events(database_url, 0)
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "insert into batches (id, owner, endpoint, input_file_id, completion_window, metadata, request_hash,"
        " expires_at, completed_at, reported) values ('batch_x', $1, '/v1/responses', 'file-in', '1h', '{}', '\\x01',"
        " now(), now(), 1)",
        OWNER,
    )
    await connection.close()
    (found,) = await hooks(before).undelivered(database_url, 0.1)
    assert "batch_x" in found
    told = {"type": "batch.completed", "data": {"id": "batch_x", "status": "completed"}}
    assert await hooks(before, told).undelivered(database_url, 0.1) == []


async def test_message_that_still_waits_is_found(database_url: str) -> None:
    await log_events(database_url, 1)
    connection = await asyncpg.connect(database_url)
    await connection.execute("update webhook_position set event_id = event_id - 1")
    await connection.close()
    (found,) = await hooks(0).undelivered(database_url, 0.1)
    assert "1 messages still wait" in found
