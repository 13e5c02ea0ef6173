"""One record per line of a batch: what it is a member by, and how it ended.

While a batch goes on, how a posted line stands is nowhere but in the outbox and in the index, so that a reorganised
block needs no care here. When the batch ends, each line's end is written down once; the files are made of that.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import attrs

from common.api.states import ENDED_BECAUSE, JobState
from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets_sql import Spending
from coordinatord.chain.relayer.outbox_sql import Priority, lock_outbox
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

_ENDINGS: Final = " ".join(f"when {number} then '{name}'" for number, name in ENDED_BECAUSE.items())
# A failover may lose the relay of a post and keep its batch, which then posts the line again. Where the database was
# replaced after the batch was created, a post that the chain refuses as a duplicate is the batch's own.
_POSTED_BEFORE: Final = (
    "(r.state = 'refused' and r.reason = 'DuplicateJob' and (select b.created_at from batches b"
    " where b.id = l.batch_id) < (select since from server_epoch))"
)
# How a line ended: `completed`, the code of its error, or null while it goes on. A job counts only as this batch's own
# post: one of the same id that was there before is why the chain refused the line.
OUTCOME: Final = (
    "case when l.result is not null then 'completed' when l.code is not null then l.code"
    " when r.state = 'refused' and j.job_id is null then coalesce(r.reason, 'unknown')"
    f" when j.state = {JobState.SETTLED} then 'completed'"
    f" when j.state = {JobState.CANCELLED} then case j.ended_because {_ENDINGS} end end"
)
JOINED: Final = (
    "batch_lines l left join relays r on r.id = l.relay_id"
    f" left join lateral (select * from jobs where job_id = l.job_id and (r.state = 'mined' or {_POSTED_BEFORE})"
    " limit 1) j on true"  # the limit keeps the planner from reading all jobs
)


@attrs.frozen(slots=True)
class LineRecord:
    """Posted (`relay_id`) or skipped (`code`)."""

    line: int
    job_id: bytes | None
    relay_id: int | None
    code: str | None
    message: str | None
    late: bool = False  # skipped because the batch's window has ended


async def posted_among(connection: Connection, batch_id: str, job_ids: Sequence[bytes]) -> set[bytes]:
    """Those of these jobs that earlier lines of the batch are. Looked up one by one: asked for as a set, all lines of
    the batch are read as long as statistics say that there are few, and each is compared with the whole set."""
    rows = await connection.fetch(
        "select j.job_id from unnest($2::bytea[]) as j(job_id) cross join lateral (select from batch_lines l"
        " where l.batch_id = $1 and l.job_id = j.job_id and l.relay_id is not null limit 1) l",
        batch_id,
        job_ids,
    )
    return {row["job_id"] for row in rows}


async def record(connection: Connection, batch_id: str, records: Iterable[LineRecord]) -> None:
    await connection.copy_records_to_table(
        "batch_lines",
        columns=("batch_id", "line", "job_id", "relay_id", "code", "message", "late"),
        records=[(batch_id, r.line, r.job_id, r.relay_id, r.code, r.message, r.late) for r in records],
    )


async def recorded(connection: Connection, batch_id: str) -> int:
    count: int = await connection.fetchval("select count(*) from batch_lines where batch_id = $1", batch_id)
    return count


async def end_dropped(connection: Connection, batch_id: str, code: str, message: str, *, late: bool) -> None:
    """Posts that were given up before they were signed, and are not to be tried again."""
    await connection.execute(
        "update batch_lines l set code = $2, message = $3, late = $4 from relays r"
        " where l.batch_id = $1 and l.code is null and r.id = l.relay_id and r.state = 'dropped'",
        batch_id,
        code,
        message,
        late,
    )


async def all_ended(connection: Connection, batch_id: str) -> bool:
    """By the index as it stands; false while it is being rebuilt."""
    ended: bool = await connection.fetchval(
        "select exists (select from index_position where not rebuilding) and not exists"
        f" (select from index_position p, {JOINED} where l.batch_id = $1 and {OUTCOME} is null)",
        batch_id,
    )
    return ended


async def any_queued(connection: Connection, batch_id: str) -> bool:
    """True when a post of it may still be signed."""
    queued: bool = await connection.fetchval(
        "select exists (select from batch_lines l join relays r on r.id = l.relay_id"
        " where l.batch_id = $1 and r.state = 'queued')",
        batch_id,
    )
    return queued


async def write_ends(connection: Connection, batch_id: str) -> bool:
    """Write down how each line ended; one that goes on ends late, as expired. False while the index is being
    rebuilt."""
    written = await connection.fetchval(
        "with ends as (select l.line, o.outcome, j.result_cid, j.provider_id, j.rate_in::text as rate_in,"
        " j.rate_out::text as rate_out, j.completion_tok"
        f" from index_position p cross join {JOINED} cross join lateral (select {OUTCOME} as outcome) o"
        " where l.batch_id = $1 and not p.rebuilding and l.code is null and l.result is null),"
        " written as (update batch_lines l set"
        " code = case when e.outcome is distinct from 'completed' then coalesce(e.outcome, 'expired') end,"
        " late = e.outcome is null,"
        " result = case when e.outcome = 'completed' then jsonb_build_object('result_cid', e.result_cid,"
        " 'provider', e.provider_id, 'rate_in', e.rate_in, 'rate_out', e.rate_out,"
        " 'completion_tok', e.completion_tok) end"
        " from ends e where l.batch_id = $1 and l.line = e.line)"
        " select true from index_position where not rebuilding",
        batch_id,
    )
    return written is True


@attrs.frozen(slots=True)
class EndedLine:
    line: int
    job_id: bytes | None
    code: str | None
    message: str | None
    late: bool
    result: str | None


async def ended_lines(connection: Connection, batch_id: str, *, completed: bool) -> AsyncIterator[EndedLine]:
    """In the file's order, a few at a time; within a transaction."""
    query = (
        "select line, job_id, code, message, late, result from batch_lines"
        f" where batch_id = $1 and result is {'not ' if completed else ''}null order by line"
    )
    async for row in connection.cursor(query, batch_id, prefetch=500):
        yield EndedLine(*row)


# As the indexes of ended batches have it: those with a result, and those without.
_ENDED: Final = "coalesce(completed_at, failed_at, expired_at, cancelled_at)"


async def drop_finished(connection: Connection, older_than_seconds: int, failed_seconds: int, limit: int) -> int:
    """Drop batches whose files have gone, with all of their records; how many. Those without a result are kept for
    `failed_seconds`."""
    dropped: list[str] = await connection.fetchval(
        "select coalesce(array_agg(b.id), '{}') from ("
        f" (select id from batches where completed > 0 and {_ENDED}"
        f" < statement_timestamp() - $1::bigint * interval '1 second' order by {_ENDED} limit $3)"
        f" union all (select id from batches where completed = 0 and {_ENDED}"
        f" < statement_timestamp() - least($1, $2::bigint) * interval '1 second' order by {_ENDED} limit $3)) b",
        older_than_seconds,
        failed_seconds,
        limit,
    )
    for table, column in (("batch_lines", "batch_id"), ("batch_work", "batch_id"), ("batches", "id")):
        await remove_due(connection, table, f"{column} = any($1::text[])", dropped)
    return len(dropped)


# Posts of batches in the outbox stand behind those that somebody waits for, in a queue bounded on its own: enough that
# the relayer has something to do while a worker prepares the next lines, few enough that none waits until it is
# dropped.
MOST_WAITING: Final = 1024

_WITHDRAWN: Final = "relay_queue_timeout"  # what a request that joined such a post hears: it may try again


@attrs.frozen(slots=True)
class Post:
    """`amount` is what its claim will collect from the owner."""

    job_id: bytes
    dedupe: bytes
    calldata: bytes = attrs.field(repr=False)
    owner: bytes
    amount: int


@attrs.frozen(slots=True)
class Allowance:
    """Limits on the posts of one owner. `spending`: each by itself; `headroom` and `position` as of a
    `Promise`."""

    spending: Spending
    headroom: int | None
    position: int


async def room(connection: Connection) -> int:
    """Number of posts that may be added now."""
    waiting: int = await connection.fetchval(
        "select count(*) from relays where state = 'queued' and priority = $1", Priority.BATCH_POST
    )
    return MOST_WAITING - waiting


async def insert(
    connection: Connection, target: bytes, posts: Sequence[Post], allowances: Mapping[bytes, Allowance]
) -> list[int] | None:
    """The relay of each, inserted or joined; within the transaction that records the lines. None, with nothing
    inserted, when another request took the room that an owner's allowance had."""
    if not posts:
        return []
    await lock_outbox(connection)
    for owner, allowance in allowances.items():
        if not await _fit(connection, [post for post in posts if post.owner == owner], allowance):
            return None
    found: dict[bytes, int] = {}
    while missing := [post for post in posts if post.dedupe not in found]:
        rows = await connection.fetch(
            "insert into relays (kind, subject, dedupe, target, calldata, priority, signer, amount, gas_estimate,"
            " newcomer)"
            " select 'post', w.subject, w.dedupe, $4, w.calldata, $5, w.signer, w.amount, w.estimate, w.newcomer"
            " from unnest($1::bytea[], $2::bytea[], $3::bytea[], $6::bytea[], $7::numeric[], $8::bigint[],"
            " $9::boolean[]) as w(subject, dedupe, calldata, signer, amount, estimate, newcomer)"
            " on conflict (dedupe) where state in ('queued', 'signed') do nothing returning dedupe, id",
            [post.job_id for post in missing],
            [post.dedupe for post in missing],
            [post.calldata for post in missing],
            target,
            Priority.BATCH_POST,
            [post.owner for post in missing],
            [post.amount for post in missing],
            [allowances[post.owner].spending.estimate for post in missing],
            [allowances[post.owner].spending.limits.newcomers is not None for post in missing],
        )
        # One that was live a moment ago may have ended since: then it is inserted in the next round.
        rows += await connection.fetch(
            "select dedupe, id from relays where dedupe = any($1::bytea[]) and state in ('queued', 'signed')",
            [post.dedupe for post in missing],
        )
        found |= {row["dedupe"]: row["id"] for row in rows}
    await connection.execute("select pg_notify('relay_queued', '')")
    return [found[post.dedupe] for post in posts]


async def _fit(connection: Connection, posts: Sequence[Post], allowance: Allowance) -> bool:
    """Under the outbox's lock: what `submit_relays` asks of single posts."""
    if await budgets_sql.room(connection, allowance.spending, len(posts)) < len(posts):
        return False
    if allowance.headroom is None:
        return True
    fits: bool = await connection.fetchval(
        "select unindexed_posts($1, $2) + $3::numeric <= $4::numeric",
        allowance.spending.signer,
        allowance.position,
        sum(post.amount for post in posts),
        allowance.headroom,
    )
    return fits


_DROPPED: Final = (
    "from relays r join batch_lines l on l.relay_id = r.id"
    " where r.state = 'dropped' and l.batch_id = $1 and l.code is null"
)


async def dropped_of(connection: Connection, batch_id: str) -> list[bytes]:
    """The owners of this batch's posts that were dropped before they were signed."""
    return [row["signer"] for row in await connection.fetch(f"select distinct r.signer {_DROPPED}", batch_id)]


async def revive(connection: Connection, batch_id: str, most: int, allowances: Mapping[bytes, Allowance]) -> int:
    """Queue posts again that were dropped before they were signed (the relayer was out of funds, the queue stood);
    how many. Where the same request is under way meanwhile, the line joins it.

    What is dropped counts for no budget: others may have taken its room, or its money, and each drop would make room
    for more. So a post comes back as far as its owner's allowance has room for it, as if it were new, and waits for it
    like a line that was never posted.
    """
    await lock_outbox(connection)
    await connection.execute(
        "update batch_lines l set relay_id = o.id from relays r join relays o on o.dedupe = r.dedupe"
        " and o.state in ('queued', 'signed')"
        " where r.id = l.relay_id and r.state = 'dropped' and l.batch_id = $1 and l.code is null",
        batch_id,
    )
    revived = 0
    for owner, allowance in sorted(allowances.items()):  # one after the other: newcomers share a budget
        room = await budgets_sql.room(connection, allowance.spending, most - revived)
        revived += await _revive(connection, batch_id, owner, room, allowance)
    if revived:
        await connection.execute("select pg_notify('relay_queued', '')")
    return revived


async def _revive(connection: Connection, batch_id: str, owner: bytes, room: int, allowance: Allowance) -> int:
    """The oldest first, as many as the gas budget has room for, and of those what the balance covers."""
    revived: int = await connection.fetchval(
        f"with waiting as (select r.id, coalesce(r.amount, 0) as amount {_DROPPED}"
        " and r.signer = $2 order by r.id limit $3),"
        " solvent as (select id from (select id, sum(amount) over (order by id) as upto from waiting) w"
        " where $4::numeric is null or unindexed_posts($2, $5) + w.upto <= $4::numeric),"
        " again as (update relays set state = 'queued', reason = null, raw = null, ended_at = null,"
        " queued_at = clock_timestamp(), requeued = least(requeued, 1), priority = $6, newcomer = $7"
        " where id in (select id from solvent) returning id)"
        " select count(*) from again",
        batch_id,
        owner,
        room,
        allowance.headroom,
        allowance.position,
        Priority.BATCH_POST,
        allowance.spending.limits.newcomers is not None,
    )
    return revived


async def withdraw(connection: Connection, batch_id: str) -> None:
    """Take back what waits to be signed; posts that the relayer is just signing are left to it."""
    await connection.execute(
        "with waiting as (select r.id from relays r join batch_lines l on l.relay_id = r.id"
        " where l.batch_id = $1 and r.state = 'queued' and r.priority = $2 for update of r skip locked),"
        " dropped as (update relays set state = 'dropped', reason = $3, ended_at = clock_timestamp()"
        " from waiting where relays.id = waiting.id returning relays.id)"
        " select count(pg_notify('relay_ended', id::text)) from dropped",
        batch_id,
        Priority.BATCH_POST,
        _WITHDRAWN,
    )
