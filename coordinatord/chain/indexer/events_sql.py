"""Event log of jobs. Events are appended in the transaction that changes the rows (see 0001_schema.sql).

Blocks near the head append one event per change. For each undone event, a reorg appends another event that takes the
undone event back. A bulk write or a rebuild appends a single `reset`, after which readers reload the rows that they
follow.
"""

from collections.abc import Sequence
from typing import Final, cast

from common.api.events import OUTCOME_BY_EVENT, EventKind
from common.api.states import EndedBecause, JobState
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

_JobStateEvent = (
    contract_events.JobPosted
    | contract_events.JobClaimed
    | contract_events.JobSettled
    | contract_events.JobCancelled
    | contract_events.JobFailed
    | contract_events.JobReclaimed
)
_EVENT_KINDS: Final[dict[type, EventKind]] = {
    contract_events.JobPosted: EventKind.POSTED,
    contract_events.JobClaimed: EventKind.CLAIMED,
    contract_events.JobSettled: EventKind.SETTLED,
    contract_events.JobCancelled: EventKind.CANCELLED,
    contract_events.JobFailed: EventKind.FAILED,
    contract_events.JobReclaimed: EventKind.RECLAIMED,
}
_RETENTION: Final = "interval '1 day'"
_COLUMNS: Final = (
    "(kind, block_number, block_time, job_id, owner, model_id, provider_id, designated, state, ended_because)"
)
_COLUMN_NAMES: Final = _COLUMNS.strip("()").split(", ")
_OUTCOME_COLUMNS: Final = {kind: f"{state:d}\t{because:d}" for kind, (state, because) in OUTCOME_BY_EVENT.items()}
_INSERT_RESET: Final = f"insert into events (kind, block_number, block_time) values ({EventKind.RESET}, $1, $2)"

# Each row that `marked` returns becomes an event of the first block after the row's expiry. That block is the
# position's block, unless several blocks arrived at once or more jobs expired than one transaction marks.
APPEND_EXPIRY_EVENTS: Final = (
    f"insert into events {_COLUMNS}"
    f" select {EventKind.EXPIRED}, b.number, b.time, m.job_id, m.owner, m.model_id, 0, m.designated,"
    f" {JobState.CANCELLED}, {EndedBecause.EXPIRY} from marked m cross join lateral ("
    " select number, time from index_blocks where number > coalesce("
    " (select number from index_blocks where time <= m.expires_at order by number desc limit 1), -1)"
    " order by number limit 1) b order by b.number, m.expires_at"
)


async def append_events(connection: Connection, blocks: Sequence[BlockRange]) -> None:
    """Append the job events of the blocks, with COPY. The job rows must exist already.

    Columns that an event shares with its post are read from `jobs` when the post is not among these blocks.
    """
    job_events = _select_job_events(blocks)
    posts = {
        event.job_id: _post_columns(event) for _, _, event in job_events if type(event) is contract_events.JobPosted
    }
    earlier = {event.job_id for _, _, event in job_events} - posts.keys()
    if earlier:
        rows = await connection.fetch(
            "select job_id, owner, model_id, designated from jobs where job_id = any($1::bytea[])", list(earlier)
        )
        posts |= {row["job_id"]: (row["owner"].hex(), row["model_id"], row["designated"]) for row in rows}
    if job_events:
        lines = "".join(
            [_format_copy_line(block, kind, event, posts[event.job_id]) for block, kind, event in job_events]
        ).encode()
        # A memoryview, because asyncpg treats bytes as a path.
        await connection.copy_to_table("events", source=memoryview(lines), columns=_COLUMN_NAMES, format="text")


def _select_job_events(blocks: Sequence[BlockRange]) -> list[tuple[BlockHeader, EventKind, _JobStateEvent]]:
    return [
        (block.last, _EVENT_KINDS[type(event)], cast("_JobStateEvent", event))
        for block in blocks
        for _, _, event in block.events
        if type(event) in _EVENT_KINDS
    ]


def _post_columns(posted: contract_events.JobPosted) -> tuple[str, int, int]:
    return posted.owner.hex(), posted.model_id, posted.designated


def _format_copy_line(block: BlockHeader, kind: EventKind, event: _JobStateEvent, post: tuple[str, int, int]) -> str:
    """Return one event as a line in COPY's text format, in the order of `_COLUMN_NAMES`."""
    owner, model_id, designated = post
    return (
        f"{kind:d}\t{block.height}\t{block.time}\t\\\\x{event.job_id.hex()}\t\\\\x{owner}\t{model_id}\t"
        f"{getattr(event, 'provider_id', 0)}\t{designated}\t{_OUTCOME_COLUMNS[kind]}\n"
    )


async def take_back_events(connection: Connection, block_number: int) -> None:
    """Append an event that takes back each event above the block, newest first. Skip events before the last reset."""
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
    """Append one reset instead of the events of all changes up to the block."""
    await connection.execute(_INSERT_RESET, block_number, block_time)


async def drop_old_events(connection: Connection) -> None:
    """Delete events older than a day.

    Keep events of blocks that a reorg may still undo, and the newest event, from which readers continue.
    """
    await remove_due(
        connection,
        "events",
        f"happened < clock_timestamp() - {_RETENTION} and id < (select max(id) from events)"
        " and block_number <= (select coalesce(min(number), 0) from index_blocks)",
    )
