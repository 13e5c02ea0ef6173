"""Queries on waiting frames of tabs, on the reader of each tab and direction, and on the parties of a tab's job."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from common.api.states import JobState
from common.api.tabs import MAX_TAB_WAITING_BYTES, MAX_TAB_WAITING_FRAMES, TAB_FRAME_LIFETIME_S
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.removal_sql import remove_due
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, snapshot_from_rows

MAX_ROWS_PER_READER: Final = 8  # per delivery

_LIFETIME: Final = f"interval '{TAB_FRAME_LIFETIME_S} seconds'"
_SELECT_PARTIES: Final = (
    f"select j.job_id, j.owner, j.provider_id, j.designated, j.state, {SNAPSHOT_COLUMNS}"
    " from index_position p left join jobs j on j.job_id = any($1::bytea[])"
)
# The rows of one post are stored in the order of the arrays, so that their ids ascend in this order. The waiting frames
# are counted only for the tabs in $6, because a count also reads rows that were deleted since the last vacuum.
_STORE_FRAMES: Final = (
    "with posted as materialized ("
    " select * from unnest($2::bytea[], $3::integer[], $4::integer[], $5::bytea[]) with ordinality"
    "  as p (job_id, frames, bytes, events, place)), "
    "full_tabs as materialized ("
    " select p.job_id from (select job_id, sum(frames) as frames, sum(bytes) as bytes from posted"
    "  where job_id = any($6::bytea[]) group by job_id) p"
    " cross join lateral (select coalesce(sum(f.frames), 0) as frames, coalesce(sum(f.bytes), 0) as bytes"
    "  from tab_frames f where f.job_id = p.job_id and f.to_owner = $1"
    f"  and f.sent_at > statement_timestamp() - {_LIFETIME}) w"
    f" where w.frames + p.frames > {MAX_TAB_WAITING_FRAMES} or w.bytes + p.bytes > {MAX_TAB_WAITING_BYTES}), "
    "stored as ("
    " insert into tab_frames (job_id, to_owner, frames, bytes, events)"
    " select job_id, $1, frames, bytes, events from posted where job_id not in (select job_id from full_tabs)"
    " order by place) "
    "select job_id from full_tabs"
)
_REGISTER_READER: Final = (
    "insert into tab_readers (job_id, to_owner, reader) values ($1, $2, $3)"
    " on conflict (job_id, to_owner) do update set reader = excluded.reader"
)
_RESTORE_READERS: Final = (
    "insert into tab_readers (job_id, to_owner, reader)"
    " select * from unnest($1::bytea[], $2::boolean[], $3::bigint[]) on conflict do nothing"
)
_TAKE_FRAMES: Final = (
    "with mine as materialized ("
    " select m.*, r.reader as registered"
    " from unnest($1::bytea[], $2::boolean[], $3::bigint[], $4::bigint[]) m (job_id, to_owner, reader, after)"
    " left join tab_readers r on r.job_id = m.job_id and r.to_owner = m.to_owner), "
    "taken as ("
    " delete from tab_frames where ctid = any(array("
    "  select f.row from mine m cross join lateral ("
    "   select w.ctid as row from tab_frames w"
    "   where w.job_id = m.job_id and w.to_owner = m.to_owner and w.id > m.after"
    f"   and w.sent_at > statement_timestamp() - {_LIFETIME} order by w.id limit {MAX_ROWS_PER_READER}) f"
    "  where m.registered = m.reader))"
    " returning id, job_id, to_owner, events) "
    "select m.reader, t.id, t.events, null::bigint as registered"
    " from taken t join mine m on m.job_id = t.job_id and m.to_owner = t.to_owner "
    "union all select reader, null, null, registered from mine where registered is distinct from reader "
    "order by id"
)


@attrs.frozen(slots=True)
class TabParties:
    """Owner and provider of a job that may be a tab. `provider_id` is 0 before the claim. `designated` is 0 for a job
    that any provider may claim."""

    owner: bytes
    provider_id: int
    designated: int
    state: JobState


@attrs.frozen(slots=True)
class NewFrames:
    """Consecutive frames of one post for one tab. `events` are the messages of these frames in a stream."""

    job_id: bytes
    frames: int
    size: int
    events: bytes


@attrs.frozen(slots=True)
class ReaderKey:
    """Key of a reader of one direction of a tab. A newer reader has another `id`."""

    job_id: bytes
    to_owner: bool
    id: int


@attrs.frozen(slots=True)
class TakenRows:
    """Rows taken from the table. `events` has the (row id, events) pairs of each reader, by the reader's id.

    The readers in `unknown_reader_ids` are missing from the table of readers, because PostgreSQL restarted. For each of
    the `replaced_reader_ids`, that table has a newer reader.
    """

    events: dict[int, list[tuple[int, bytes]]]
    unknown_reader_ids: set[int]
    replaced_reader_ids: set[int]


async def read_parties(connection: PreparedConnection, job_ids: Sequence[bytes]) -> dict[bytes, TabParties | None]:
    """Return the parties of every job, or None for a job that is not in the index."""
    rows = await connection.fetch(_SELECT_PARTIES, job_ids)
    snapshot_from_rows(rows)
    found: dict[bytes, TabParties | None] = dict.fromkeys(job_ids)
    for row in rows:
        if row["job_id"] is not None:
            found[row["job_id"]] = TabParties(
                row["owner"], row["provider_id"], row["designated"], JobState(row["state"])
            )
    return found


async def store_frames(
    connection: PreparedConnection, frames: Sequence[NewFrames], counted: Collection[bytes], *, to_owner: bool
) -> set[bytes]:
    """Store frames, except for jobs in `counted` whose mailbox is full. Return the ids of these jobs."""
    columns = list(zip(*map(attrs.astuple, frames), strict=True))
    return {row["job_id"] for row in await connection.fetch(_STORE_FRAMES, to_owner, *columns, counted)}


async def register_reader(connection: PreparedConnection, reader: ReaderKey) -> None:
    """Make this reader the only reader of its tab and direction."""
    await connection.fetch(_REGISTER_READER, reader.job_id, reader.to_owner, reader.id)


async def restore_readers(connection: PreparedConnection, readers: Sequence[ReaderKey]) -> None:
    """Register readers again, except replaced ones."""
    await connection.fetch(_RESTORE_READERS, *zip(*map(attrs.astuple, readers), strict=True))


async def take_frames(connection: PreparedConnection, readers: Mapping[ReaderKey, int]) -> TakenRows:
    """Delete and return the oldest waiting frames of each reader. A reader maps to the id of the last row that was
    delivered to it, so that the index scan skips deleted rows. Rows with smaller ids that are stored later are not
    delivered to this reader, but exist only if the sender posts concurrently."""
    taken = TakenRows({}, set(), set())
    columns = zip(*map(attrs.astuple, readers), strict=True)
    for row in await connection.fetch(_TAKE_FRAMES, *columns, list(readers.values())):
        if row["events"] is not None:
            taken.events.setdefault(row["reader"], []).append((row["id"], row["events"]))
        else:
            (taken.unknown_reader_ids if row["registered"] is None else taken.replaced_reader_ids).add(row["reader"])
    return taken


async def delete_old_frames(connection: Connection) -> None:
    """Delete frames that no reader fetched in time, and readers of jobs that are not claimed any more."""
    await remove_due(connection, "tab_frames", f"sent_at <= statement_timestamp() - {_LIFETIME}")
    await connection.execute(
        "delete from tab_readers r where not exists"
        f" (select from jobs j where j.job_id = r.job_id and j.state = {JobState.CLAIMED})"
    )
