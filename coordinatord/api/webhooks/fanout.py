"""Fan-out: turns the event log and changes of batches into messages for the endpoints that want them.

    events after `webhook_position`   ─┐
    changes after `batches.reported`  ─┴─► messages, in the transaction that moves both

One process at a time fans out. If that process dies, its transaction is rolled back.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import attrs
import msgspec

from common.api.batches import RequestCounts
from common.api.events import JOB_EVENT_NAMES, EventKind, JobEvent
from common.api.webhook_messages import (
    BatchChange,
    BatchMessage,
    GapData,
    GapMessage,
    JobMessage,
    TestData,
    TestMessage,
)
from coordinatord.api.events.events_sql import LoggedEvent, is_logged, read_events_after
from coordinatord.api.events.messages import event_data
from coordinatord.api.webhooks import fanout_sql
from coordinatord.api.webhooks.fanout_sql import Addressee, BatchStatusChange, NewMessage
from coordinatord.storage.database.connections import Connection, Database

MAX_CHANGES_PER_ROUND: Final = 2_000  # limit on the events of one database transaction, and on its batches
_encode: Final = msgspec.json.Encoder().encode


@attrs.frozen(slots=True)
class _Change:
    """Message about a changed job or batch of `owner`, for the endpoints that list `event_name` among their events.

    `message_type` is the `type` in the body. It is `job.taken_back` for a change that a reorg undid.
    """

    owner: bytes
    event_name: str
    message_type: str
    body: bytes


def new_test_message(webhook_id: str) -> NewMessage:
    sent = TestMessage("webhook.test", _format_rfc3339(datetime.now(UTC).timestamp()), TestData(webhook_id))
    return _new_message(webhook_id, sent.type, _encode(sent))


def job_message(event: LoggedEvent) -> JobMessage:
    sent = event_data(event)
    if not isinstance(sent, JobEvent):
        raise AssertionError("a reset is not a job's event")
    kind: Literal["job.taken_back"] | str = f"job.{sent.event}" if event.taken_back_id is None else "job.taken_back"
    return JobMessage(kind, _format_rfc3339(event.block_time), sent)  # type: ignore[arg-type] # one of the names


def batch_message(change: BatchStatusChange) -> BatchMessage:
    counts = None
    if change.total is not None and change.completed is not None and change.failed is not None:
        counts = RequestCounts(change.completed, change.failed, change.total)
    data = BatchChange(change.batch_id, change.status, counts, change.output_file_id, change.error_file_id)  # type: ignore[arg-type] # one of the names in SQL
    return BatchMessage(f"batch.{change.status}", _format_rfc3339(change.happened_at.timestamp()), data)  # type: ignore[arg-type] # the same


@attrs.frozen(slots=True)
class FanOut:
    database: Database

    async def run_round(self) -> bool:
        """Write messages for new events and batch changes. Return True when there may be more of them."""
        return await self.database.transact(self._write_round)

    async def _write_round(self, connection: Connection) -> bool:
        position = await fanout_sql.lock_position(connection)
        if position is None:
            return False
        if not await is_logged(connection, position):
            await self._write_gap(connection, await fanout_sql.read_newest_event_id(connection))
            return True
        events = await read_events_after(connection, position, MAX_CHANGES_PER_ROUND)
        resets = [index for index, event in enumerate(events) if event.kind is EventKind.RESET]
        if resets:  # events before a reset are no longer valid
            await self._write_gap(connection, events[resets[-1]].id)
            return True
        batches, more_batches = await fanout_sql.take_batch_changes(connection, MAX_CHANGES_PER_ROUND)
        changes = [
            *(
                _Change(e.owner, f"job.{JOB_EVENT_NAMES[e.kind]}", (m := job_message(e)).type, _encode(m))
                for e in events
            ),
            *(_Change(b.owner, f"batch.{b.status}", (n := batch_message(b)).type, _encode(n)) for b in batches),
        ]
        if changes:
            owners = list({each.owner for each in changes})
            last = events[-1].id if events else position
            await _write_messages(connection, await fanout_sql.lock_addressees(connection, owners), changes, last)
        if events:
            await fanout_sql.move_position(connection, events[-1].id)
        return len(events) == MAX_CHANGES_PER_ROUND or more_batches

    async def _write_gap(self, connection: Connection, event_id: int) -> None:
        """Write a reset to every endpoint, so that receivers reload their state. Move the position to this event."""
        addressees = await fanout_sql.lock_addressees(connection, None)
        if addressees:
            body = _encode(_gap_message(event_id))
            await fanout_sql.write_messages(
                connection, [_new_message(each.id, "events.reset", body) for each in addressees]
            )
            await fanout_sql.clear_missed(connection, [each.id for each in addressees])
        await fanout_sql.move_position(connection, event_id)


async def _write_messages(
    connection: Connection, addressees: Sequence[Addressee], changes: Sequence[_Change], last: int
) -> None:
    """Write the messages of the changes. An endpoint that missed messages gets no more until half of its queue is free.
    The first message to the endpoint after that names `last`, the event up to which the receiver must read the event
    log."""
    by_owner: dict[bytes, list[_Change]] = {}
    for each in changes:
        by_owner.setdefault(each.owner, []).append(each)
    messages: list[NewMessage] = []
    missed: dict[str, int] = {}
    caught_up: list[str] = []
    for endpoint in addressees:
        changed = by_owner.get(endpoint.owner, ())
        wanted = [each for each in changed if not endpoint.wanted_events or each.event_name in endpoint.wanted_events]
        room = max(endpoint.queue_room, 0)
        if endpoint.has_missed_messages and wanted and room > fanout_sql.MAX_WAITING_MESSAGES // 2:
            messages.append(_new_message(endpoint.id, "events.reset", _encode(_gap_message(last))))
            caught_up.append(endpoint.id)
        elif endpoint.has_missed_messages:
            room = 0
        messages += [_new_message(endpoint.id, each.message_type, each.body) for each in wanted[:room]]
        if len(wanted) > room:
            missed[endpoint.id] = len(wanted) - room
    if messages:
        await fanout_sql.write_messages(connection, messages)
    if caught_up:
        await fanout_sql.clear_missed(connection, caught_up)
    if missed:
        await fanout_sql.record_missed(connection, missed)


def _new_message(webhook_id: str, kind: str, body: bytes) -> NewMessage:
    return NewMessage(webhook_id, f"msg_{secrets.token_hex(16)}", kind, body)


def _gap_message(event_id: int) -> GapMessage:
    return GapMessage("events.reset", _format_rfc3339(datetime.now(UTC).timestamp()), GapData(str(event_id)))


def _format_rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
