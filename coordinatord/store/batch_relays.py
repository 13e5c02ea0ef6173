"""Posts of batches in the outbox: many at once, behind those that somebody waits for, in a queue bounded on its own."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from coordinatord.store import gas_budgets
from coordinatord.store.database import Connection
from coordinatord.store.gas_budgets import Spending
from coordinatord.store.outbox import Priority

# Enough that the relayer has something to do while a worker prepares the next stretch, few enough that none waits for
# its turn until it is dropped.
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
    """What the posts of one owner are held against. `spending`: each by itself; `headroom` and `position` as of a
    `Promise`."""

    spending: Spending
    headroom: int | None
    position: int


async def room(connection: Connection) -> int:
    """How many posts may be added now."""
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
    await connection.execute("select lock_outbox()")
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
    if await gas_budgets.room(connection, allowance.spending, len(posts)) < len(posts):
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


async def revive(connection: Connection, batch_id: str, most: int) -> int:
    """Queue posts again that were dropped before they were signed (the relayer was out of funds, the queue stood);
    how many. Where the same request is under way meanwhile, the line joins it."""
    dropped = await connection.fetchval(
        "select exists (select from relays r join batch_lines l on l.relay_id = r.id"
        " where r.state = 'dropped' and l.batch_id = $1 and l.code is null)",
        batch_id,
    )
    if not dropped:
        return 0
    await connection.execute("select lock_outbox()")
    await connection.execute(
        "update batch_lines l set relay_id = o.id from relays r join relays o on o.dedupe = r.dedupe"
        " and o.state in ('queued', 'signed')"
        " where r.id = l.relay_id and r.state = 'dropped' and l.batch_id = $1 and l.code is null",
        batch_id,
    )
    revived: int = await connection.fetchval(
        "with again as (update relays set state = 'queued', reason = null, raw = null, ended_at = null,"
        " queued_at = clock_timestamp(), requeued = least(requeued, 1), priority = $3 where id in (select r.id"
        " from relays r join batch_lines l on l.relay_id = r.id"
        " where r.state = 'dropped' and l.batch_id = $1 and l.code is null order by r.id limit $2) returning id)"
        " select count(*) from again",
        batch_id,
        most,
        Priority.BATCH_POST,
    )
    await connection.execute("select pg_notify('relay_queued', '')")
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
