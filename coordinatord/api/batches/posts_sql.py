"""Posts of batches in the outbox.

They have the lowest priority and a queue limit of their own: enough that the relayer is busy while a worker prepares
the next lines, few enough that none waits until it is dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets_sql import Spending
from coordinatord.chain.relayer.outbox_sql import Priority, lock_outbox
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import RELAY_QUEUED, notify_outbox

MAX_QUEUED: Final = 1024
_WITHDRAWN: Final = "relay_queue_timeout"  # requests that joined such a post receive a retryable error


@attrs.frozen(slots=True)
class Post:
    """Post of a line. `amount` is what its claim will collect from the owner."""

    job_id: bytes
    dedupe: bytes
    calldata: bytes = attrs.field(repr=False)
    owner: bytes
    amount: int


@attrs.frozen(slots=True)
class Allowance:
    """Limits on the posts of one owner: `spending` of each post, `headroom` and `position` as of a `Promise`."""

    spending: Spending
    headroom: int | None
    position: int


async def room(connection: Connection) -> int:
    """Return the number of posts that may be added now."""
    waiting: int = await connection.fetchval(
        "select count(*) from relays where state = 'queued' and priority = $1", Priority.BATCH_POST
    )
    return MAX_QUEUED - waiting


async def insert(
    connection: Connection, target: bytes, posts: Sequence[Post], allowances: Mapping[bytes, Allowance]
) -> list[int] | None:
    """Insert the posts or join equal live ones, in the transaction that records the lines. Return the relay of each.
    Return None, with nothing inserted, when another request took the room that an owner's allowance had."""
    if not posts:
        return []
    await lock_outbox(connection)
    for owner, allowance in allowances.items():
        if not await _fits_allowance(connection, [post for post in posts if post.owner == owner], allowance):
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
        # A relay that ended between the two statements is in neither. The next round inserts it.
        rows += await connection.fetch(
            "select dedupe, id from relays where dedupe = any($1::bytea[]) and state in ('queued', 'signed')",
            [post.dedupe for post in missing],
        )
        found |= {row["dedupe"]: row["id"] for row in rows}
    await notify_outbox(connection, RELAY_QUEUED)
    return [found[post.dedupe] for post in posts]


async def _fits_allowance(connection: Connection, posts: Sequence[Post], allowance: Allowance) -> bool:
    """Check posts against the allowance, under the outbox's lock, as `submit_relays` checks single posts."""
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
    """Return the owners of this batch's posts that were dropped before signing."""
    return [row["signer"] for row in await connection.fetch(f"select distinct r.signer {_DROPPED}", batch_id)]


async def revive(connection: Connection, batch_id: str, limit: int, allowances: Mapping[bytes, Allowance]) -> int:
    """Requeue posts that were dropped before signing, because the relayer was out of funds or the queue stalled. Return
    their number. If an equal request is under way, the line joins it.

    A dropped post counts towards no budget. So like a new post, it is requeued only if its owner's allowance has room.
    """
    await lock_outbox(connection)
    await connection.execute(
        "update batch_lines l set relay_id = o.id from relays r join relays o on o.dedupe = r.dedupe"
        " and o.state in ('queued', 'signed')"
        " where r.id = l.relay_id and r.state = 'dropped' and l.batch_id = $1 and l.code is null",
        batch_id,
    )
    revived = 0
    for owner, allowance in sorted(allowances.items()):  # one after another, because newcomers share a budget
        room = await budgets_sql.room(connection, allowance.spending, limit - revived)
        revived += await _revive(connection, batch_id, owner, room, allowance)
    if revived:
        await notify_outbox(connection, RELAY_QUEUED)
    return revived


async def _revive(connection: Connection, batch_id: str, owner: bytes, room: int, allowance: Allowance) -> int:
    """Requeue the oldest posts, up to `room` (the gas budget) and up to the balance."""
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
    """Drop posts that wait to be signed, except posts that the relayer is signing now."""
    await connection.execute(
        "with waiting as (select r.id from relays r join batch_lines l on l.relay_id = r.id"
        " where l.batch_id = $1 and r.state = 'queued' and r.priority = $2 for update of r skip locked),"
        " dropped as (update relays set state = 'dropped', reason = $3, ended_at = clock_timestamp()"
        " from waiting where relays.id = waiting.id returning relays.id)"
        " select count(pg_notify('outbox_moved', 'ended ' || id)) from dropped",
        batch_id,
        Priority.BATCH_POST,
        _WITHDRAWN,
    )
