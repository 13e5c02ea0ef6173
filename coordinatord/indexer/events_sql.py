"""Event log: what happened to jobs, appended in the transaction that changes their rows (see the migration).

Blocks near the head append their events; blocks that a reorganisation undoes, take-backs of those. Where the index is
written in bulk, or anew, one `reset` stands for all: readers then read again what they follow.
"""

from collections.abc import Sequence
from typing import Final

from common.wire.events import OUTCOMES, EventKind
from common.wire.states import EndedBecause, JobState
from coordinatord.chain import events as ev
from coordinatord.database.connections import Connection
from coordinatord.database.notices import INDEX_MOVED
from coordinatord.database.removal_sql import remove_due
from coordinatord.indexer.evidence import BlockRange

_KINDS: Final[dict[type, EventKind]] = {
    ev.JobPosted: EventKind.POSTED,
    ev.JobClaimed: EventKind.CLAIMED,
    ev.JobSettled: EventKind.SETTLED,
    ev.JobCancelled: EventKind.CANCELLED,
    ev.JobFailed: EventKind.FAILED,
    ev.JobReclaimed: EventKind.RECLAIMED,
}
_STATES: Final = f"'{{{','.join(str(int(state)) for state, _ in OUTCOMES.values())}}}'::smallint[]"
_REASONS: Final = f"'{{{','.join(str(int(because)) for _, because in OUTCOMES.values())}}}'::smallint[]"
_KEPT: Final = "interval '1 day'"
_COLUMNS: Final = (
    "(kind, block_number, block_time, job_id, owner, model_id, provider_id, designated, state, ended_because)"
)
_APPEND: Final = (
    f"insert into events {_COLUMNS}"
    " select e.kind, ($3::bigint[])[e.block], ($4::bigint[])[e.block], j.job_id, j.owner, j.model_id, e.provider_id,"
    f" j.designated, ({_STATES})[e.kind + 1], ({_REASONS})[e.kind + 1]"
    " from unnest($1::smallint[], $2::smallint[], $5::bytea[], $6::bigint[]) with ordinality"
    " as e(kind, block, job_id, provider_id, place) join jobs j on j.job_id = e.job_id order by e.place"
)
_RESET: Final = f"insert into events (kind, block_number, block_time) values ({EventKind.RESET}, $1, $2)"

# Rows that `marked` returns, each at the first block after its expiry. That is the position's block, or one of the few
# before it where several came at once or more expired than one transaction marks.
APPEND_MARKED: Final = (
    f"insert into events {_COLUMNS}"
    f" select {EventKind.EXPIRED}, b.number, b.time, m.job_id, m.owner, m.model_id, 0, m.designated,"
    f" {JobState.CANCELLED}, {EndedBecause.EXPIRY} from marked m cross join lateral ("
    " select number, time from index_blocks where number > coalesce("
    " (select number from index_blocks where time <= m.expires_at order by number desc limit 1), -1)"
    " order by number limit 1) b order by b.number, m.expires_at"
)


async def append_events(connection: Connection, blocks: Sequence[BlockRange]) -> None:
    """What the blocks' events say of jobs, whose rows are there already."""
    kinds: list[int] = []
    at: list[int] = []
    job_ids: list[bytes] = []
    providers: list[int] = []
    for place, block in enumerate(blocks, 1):
        for _, _, event in block.events:
            kind = _KINDS.get(type(event))
            if kind is not None:
                kinds.append(kind)
                at.append(place)
                job_ids.append(event.job_id)  # type: ignore[union-attr] # each of these kinds has one
                providers.append(getattr(event, "provider_id", 0))
    if kinds:
        numbers, times = [block.last.height for block in blocks], [block.last.time for block in blocks]
        await connection.execute(_APPEND, kinds, at, numbers, times, job_ids, providers)


async def take_back_events(connection: Connection, block_number: int) -> None:
    """Everything above that block, the newest first. What was before a reset is nobody's any more."""
    await connection.execute(
        f"insert into events {_COLUMNS[:-1]}, takes_back)"
        " select kind, block_number, block_time, job_id, owner, model_id, provider_id, designated, state,"
        " ended_because, id from events e"
        f" where id > (select coalesce(max(id), 0) from events where kind = {EventKind.RESET})"
        " and block_number > $1 and takes_back is null"
        " and not exists (select from events t where t.takes_back = e.id) order by id desc",
        block_number,
    )


async def append_reset(connection: Connection, block_number: int, block_time: int) -> None:
    """Changes up to that block are not told one by one."""
    await connection.execute(_RESET, block_number, block_time)


async def resume_log(connection: Connection) -> None:
    """Append a reset where a release that keeps no log has moved the index since this one did."""
    await connection.execute(
        "with behind as (update index_position set events_hash = block_hash"
        " where events_hash is distinct from block_hash returning block_number, block_time),"
        " told as (insert into events (kind, block_number, block_time)"
        f" select {EventKind.RESET}, block_number, block_time from behind)"
        " select pg_notify($1, block_number::text) from behind",
        INDEX_MOVED,
    )


async def drop_old(connection: Connection) -> None:
    """Events of more than a day ago. Those of blocks that a reorganisation may still undo stay, to be taken back; so
    does the newest, from which readers go on."""
    await remove_due(
        connection,
        "events",
        f"happened < clock_timestamp() - {_KEPT} and id < (select max(id) from events)"
        " and block_number <= (select coalesce(min(number), 0) from index_blocks)",
    )
