"""Posts of batches in the outbox.

Posts of batches have the lowest priority and a separate limit on queued posts. The limit is high enough to keep the
relayer busy while a worker prepares the next lines. It is low enough that no post waits so long that it is dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets_sql import Spending
from coordinatord.chain.relayer.outbox_sql import Priority, lock_outbox
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import RELAY_QUEUED, notify_outbox

MAX_QUEUED_POSTS: Final = 1024
# With this reason, requests that joined a withdrawn post receive a retryable error.
_WITHDRAWN_REASON: Final = "relay_queue_timeout"


@attrs.frozen(slots=True)
class BatchPost:
    """Transaction that posts the job of a line. A later claim of the job collects `amount` from the owner."""

    job_id: bytes
    dedupe: bytes
    calldata: bytes = attrs.field(repr=False)
    owner: bytes
    amount: int


@attrs.frozen(slots=True)
class Allowance:
    """Limits on the posts of one owner. `spending` has the estimated gas of one post, and the owner's gas limits.
    `headroom` is the part of the owner's balance that is left to pay for posts that are not indexed at `block_number`,
    or None if the balance is unknown."""

    spending: Spending
    headroom: int | None
    block_number: int


async def count_queue_room(connection: Connection) -> int:
    """Return the number of posts that the queue has room for now."""
    waiting: int = await connection.fetchval(
        "select count(*) from relays where state = 'queued' and priority = $1", Priority.BATCH_POST
    )
    return MAX_QUEUED_POSTS - waiting


async def insert_posts(
    connection: Connection, target: bytes, posts: Sequence[BatchPost], allowances: Mapping[bytes, Allowance]
) -> list[int] | None:
    """Insert the posts, or join equal pending posts, in the transaction that records the lines. Return the relay id of
    each post. Insert nothing and return None if another request has used up the allowance of an owner."""
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
            [allowances[post.owner].spending.gas_estimate for post in missing],
            [allowances[post.owner].spending.gas_limits.newcomers_gas is not None for post in missing],
        )
        # A relay that ended between the two statements is in neither result. The next round inserts a new relay.
        rows += await connection.fetch(
            "select dedupe, id from relays where dedupe = any($1::bytea[]) and state in ('queued', 'signed')",
            [post.dedupe for post in missing],
        )
        found |= {row["dedupe"]: row["id"] for row in rows}
    await notify_outbox(connection, RELAY_QUEUED)
    return [found[post.dedupe] for post in posts]


async def _fits_allowance(connection: Connection, posts: Sequence[BatchPost], allowance: Allowance) -> bool:
    """Return True if the posts fit the allowance. The caller holds the outbox's lock. `submit_relays` applies the same
    check to single posts."""
    if await budgets_sql.count_fitting_ops(connection, allowance.spending, len(posts)) < len(posts):
        return False
    if allowance.headroom is None:
        return True
    fits: bool = await connection.fetchval(
        "select unindexed_posts($1, $2) + $3::numeric <= $4::numeric",
        allowance.spending.signer,
        allowance.block_number,
        sum(post.amount for post in posts),
        allowance.headroom,
    )
    return fits


_FROM_DROPPED_POSTS: Final = (
    "from relays r join batch_lines l on l.relay_id = r.id"
    " where r.state = 'dropped' and l.batch_id = $1 and l.code is null"
)


async def read_owners_of_dropped_posts(connection: Connection, batch_id: str) -> list[bytes]:
    """Return the owners of this batch's posts that were dropped before signing."""
    return [
        row["signer"] for row in await connection.fetch(f"select distinct r.signer {_FROM_DROPPED_POSTS}", batch_id)
    ]


async def requeue_dropped_posts(
    connection: Connection, batch_id: str, limit: int, allowances: Mapping[bytes, Allowance]
) -> int:
    """Requeue posts that were dropped before signing, because the relayer was out of funds or the queue stalled. Return
    their number. If an equal relay is pending, the line joins that relay instead.

    A dropped post counts towards no budget. So it is requeued only if the owner's allowance has room for a new post.
    """
    await lock_outbox(connection)
    await connection.execute(
        "update batch_lines l set relay_id = o.id from relays r join relays o on o.dedupe = r.dedupe"
        " and o.state in ('queued', 'signed')"
        " where r.id = l.relay_id and r.state = 'dropped' and l.batch_id = $1 and l.code is null",
        batch_id,
    )
    requeued_posts = 0
    for owner, allowance in sorted(allowances.items()):  # one after another, because newcomers share a budget
        room = await budgets_sql.count_fitting_ops(connection, allowance.spending, limit - requeued_posts)
        requeued_posts += await _requeue_for_owner(connection, batch_id, owner, room, allowance)
    if requeued_posts:
        await notify_outbox(connection, RELAY_QUEUED)
    return requeued_posts


async def _requeue_for_owner(
    connection: Connection, batch_id: str, owner: bytes, room: int, allowance: Allowance
) -> int:
    """Requeue the owner's oldest dropped posts: as many as the balance covers, but at most `room`, the number that the
    gas budget allows. Return their number."""
    requeued_posts: int = await connection.fetchval(
        f"with waiting as (select r.id, coalesce(r.amount, 0) as amount {_FROM_DROPPED_POSTS}"
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
        allowance.block_number,
        Priority.BATCH_POST,
        allowance.spending.gas_limits.newcomers_gas is not None,
    )
    return requeued_posts


async def withdraw_queued_posts(connection: Connection, batch_id: str) -> None:
    """Drop the batch's posts that wait to be signed, except posts that the relayer is signing now."""
    await connection.execute(
        "with waiting as (select r.id from relays r join batch_lines l on l.relay_id = r.id"
        " where l.batch_id = $1 and r.state = 'queued' and r.priority = $2 for update of r skip locked),"
        " dropped as (update relays set state = 'dropped', reason = $3, ended_at = clock_timestamp()"
        " from waiting where relays.id = waiting.id returning relays.id)"
        " select count(pg_notify('outbox_moved', 'ended ' || id)) from dropped",
        batch_id,
        Priority.BATCH_POST,
        _WITHDRAWN_REASON,
    )
