"""Fan-out: turns the event log and changes of batches into messages for the endpoints that want them.

    events after `webhook_position`   ─┐
    changes after `batches.reported`  ─┴─► messages, in the transaction that moves both

One process at a time fans out. If it dies, its transaction is rolled back.
"""

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import attrs
import msgspec

from common.api.batches import RequestCounts
from common.api.events import JOB_EVENTS, EventKind, JobEvent
from common.api.webhook_messages import (
    BatchChange,
    BatchMessage,
    GapData,
    GapMessage,
    JobMessage,
    TestData,
    TestMessage,
)
from coordinatord.api.events.events_sql import LoggedEvent, is_logged, read_after
from coordinatord.api.events.messages import event_of
from coordinatord.api.webhooks import fanout_sql
from coordinatord.api.webhooks.fanout_sql import Addressee, BatchNews, NewMessage
from coordinatord.storage.database.connections import Connection, Database

MAX_CHANGES: Final = 2_000  # events per database transaction, and as many batches
_encode: Final = msgspec.json.Encoder().encode

Written = JobMessage | BatchMessage | GapMessage | TestMessage


@attrs.frozen(slots=True)
class _Change:
    """Change of a job or batch of `owner`. `wanted`: the event that an endpoint names to receive it."""

    owner: bytes
    wanted: str
    type: str
    body: bytes


def test_message(webhook_id: str) -> NewMessage:
    sent = TestMessage("webhook.test", _rfc3339(datetime.now(UTC).timestamp()), TestData(webhook_id))
    return _message(webhook_id, sent.type, _encode(sent))


def job_message(event: LoggedEvent) -> JobMessage:
    sent = event_of(event)
    if not isinstance(sent, JobEvent):
        raise AssertionError("a reset is not a job's event")
    kind: Literal["job.taken_back"] | str = f"job.{sent.event}" if event.takes_back is None else "job.taken_back"
    return JobMessage(kind, _rfc3339(event.block_time), sent)  # type: ignore[arg-type] # one of the names


def batch_message(news: BatchNews) -> BatchMessage:
    counts = None
    if news.total is not None and news.completed is not None and news.failed is not None:
        counts = RequestCounts(news.completed, news.failed, news.total)
    change = BatchChange(news.batch_id, news.status, counts, news.output_file_id, news.error_file_id)  # type: ignore[arg-type] # one of the names in SQL
    return BatchMessage(f"batch.{news.status}", _rfc3339(news.happened.timestamp()), change)  # type: ignore[arg-type] # the same


@attrs.frozen(slots=True)
class FanOut:
    database: Database

    async def round(self) -> bool:
        """Write messages of new events and changes. Return True when there may be more."""
        return await self.database.transact(self._round)

    async def _round(self, connection: Connection) -> bool:
        position = await fanout_sql.take_position(connection)
        if position is None:
            return False
        if not await is_logged(connection, position):
            await self._write_gap(connection, await fanout_sql.newest_event(connection))
            return True
        events = await read_after(connection, position, MAX_CHANGES)
        resets = [place for place, event in enumerate(events) if event.kind is EventKind.RESET]
        if resets:  # events before a reset are no longer valid
            await self._write_gap(connection, events[resets[-1]].id)
            return True
        batches, more_batches = await fanout_sql.take_batches(connection, MAX_CHANGES)
        changes = [
            *(_Change(e.owner, f"job.{JOB_EVENTS[e.kind]}", (m := job_message(e)).type, _encode(m)) for e in events),
            *(_Change(b.owner, f"batch.{b.status}", (n := batch_message(b)).type, _encode(n)) for b in batches),
        ]
        if changes:
            owners = list({each.owner for each in changes})
            last = events[-1].id if events else position
            await _write(connection, await fanout_sql.addressees(connection, owners), changes, last)
        if events:
            await fanout_sql.move_position(connection, events[-1].id)
        return len(events) == MAX_CHANGES or more_batches

    async def _write_gap(self, connection: Connection, event_id: int) -> None:
        """Send every endpoint a message to reload its state, and continue after this event."""
        everyone = await fanout_sql.addressees(connection, None)
        if everyone:
            body = _encode(_gap(event_id))
            await fanout_sql.write(connection, [_message(each.id, "events.reset", body) for each in everyone])
            await fanout_sql.clear_missed(connection, [each.id for each in everyone])
        await fanout_sql.move_position(connection, event_id)


async def _write(
    connection: Connection, addressees: Sequence[Addressee], changes: Sequence[_Change], last: int
) -> None:
    """Write messages. An endpoint that missed messages has to read the event log up to `last`."""
    by_owner: dict[bytes, list[_Change]] = {}
    for each in changes:
        by_owner.setdefault(each.owner, []).append(each)
    messages: list[NewMessage] = []
    missed: dict[str, int] = {}
    caught_up: list[str] = []
    for endpoint in addressees:
        wanted = list(_wanted_by(endpoint, by_owner.get(endpoint.owner, ())))
        room = max(endpoint.room, 0)
        if endpoint.missed and wanted and room > fanout_sql.MAX_WAITING // 2:  # not for each single free place
            messages.append(_message(endpoint.id, "events.reset", _encode(_gap(last))))
            caught_up.append(endpoint.id)
        elif endpoint.missed:
            room = 0
        messages += [_message(endpoint.id, each.type, each.body) for each in wanted[:room]]
        if len(wanted) > room:
            missed[endpoint.id] = len(wanted) - room
    if messages:
        await fanout_sql.write(connection, messages)
    if caught_up:
        await fanout_sql.clear_missed(connection, caught_up)
    if missed:
        await fanout_sql.note_missed(connection, missed)


def _wanted_by(endpoint: Addressee, changes: Iterable[_Change]) -> Iterable[_Change]:
    return (each for each in changes if not endpoint.wanted or each.wanted in endpoint.wanted)


def _message(webhook_id: str, kind: str, body: bytes) -> NewMessage:
    return NewMessage(webhook_id, f"msg_{secrets.token_hex(16)}", kind, body)


def _gap(event_id: int) -> GapMessage:
    return GapMessage("events.reset", _rfc3339(datetime.now(UTC).timestamp()), GapData(str(event_id)))


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
