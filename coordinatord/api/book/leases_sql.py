"""Leases of open jobs to polling providers: at most one live lease per job.

A lapsed lease is overwritten by the next poll that takes the job, so nothing has to clean up for polls to go on. A job
whose payment cannot be had is leased to nobody for a while.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import asyncpg
import attrs

from common.api.states import JobState
from coordinatord.api.book.book_sql import JOB_COLUMNS, JobFilter, JobRow, job_row
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of

_NOBODY: Final = 0
_FIRST_WAIT: Final = timedelta(seconds=15)
_LONGEST_WAIT: Final = timedelta(minutes=30)
_MOST_HELD_BACK: Final = 10_000  # jobs of one owner at once
_AMOUNT: Final = "(j.cap + div(j.cap * j.fee_bps, 10000) + j.gas_fee)"
_LIVE: Final = "l.expires_at > clock_timestamp()"
_OPEN: Final = f"j.state = {JobState.OPEN}"
_BID: Final = f"j.model_id = m.model_id and j.designated = 0 and {_OPEN}"


class PollKey(NamedTuple):
    """A provider's poll for a model."""

    provider_id: int
    model_id: int


@attrs.frozen(slots=True)
class Peek:
    """Look ahead for a poll: is there such a model, a bid of it that nobody holds, anything that the provider holds or
    might lease? `any_open`: a job that it could lease once nobody else holds it; while there is none, it cannot hold
    one either, and the poll has nothing to find."""

    known_model: bool
    any_bid: bool
    any_open: bool
    anything: bool


@attrs.frozen(slots=True)
class JobPlace:
    """A job's place in the order of posting."""

    block: int
    log: int


START: Final = JobPlace(-1, -1)


@attrs.frozen(slots=True)
class LeaseRequest:
    """A poll that wants leases. `after`: the place in the order of bids from which to look first."""

    poller: PollKey
    free: int
    after: JobPlace = START


@attrs.frozen(slots=True)
class HeldJob:
    """`is_new`: leased by this very poll. `amount` is what its claim collects from the owner."""

    row: JobRow
    is_new: bool
    amount: int
    place: JobPlace


async def peek(
    line: PreparedConnection, pollers: Sequence[PollKey], bare: Mapping[int, bytes]
) -> tuple[Snapshot, dict[PollKey, Peek]]:
    """For all of them at once. It looks past no filter: what it calls anything may turn out to be nothing.

    `bare`: models that had no bid to lease a moment ago, and the hash of the block that this was at: no look is taken
    at their bids while the index stands there.
    """
    rows = await line.fetch(
        "with asked as ("
        "select * from unnest($1::bigint[], $2::bigint[], $3::bytea[]) as a(provider_id, model_id, bare)),"
        f" bids as (select m.model_id, exists (select 1 from jobs j where {_BID}) as some_open,"
        f" m.bare is distinct from p.block_hash and exists (select 1 from jobs j where {_BID}"
        f" and not exists (select 1 from leases l where l.job_id = j.job_id and {_LIVE})) as some"
        " from (select distinct model_id, bare from asked) m cross join index_position p),"
        " reserved as (select a.provider_id, a.model_id, exists (select 1 from jobs j"
        f" where j.designated = a.provider_id and j.designated > 0 and j.model_id = a.model_id and {_OPEN}) as some"
        " from asked a cross join index_position p)"
        " select a.provider_id, a.model_id, exists (select 1 from models m where m.model_id = a.model_id) as known,"
        " b.some, b.some_open or r.some as any_open, b.some or r.some or b.some_open and exists (select 1 from"
        f" leases l where l.provider_id = a.provider_id and l.model_id = a.model_id and {_LIVE}) as anything,"
        f" {SNAPSHOT}"
        " from index_position p cross join asked a join bids b on b.model_id = a.model_id"
        " join reserved r on r.provider_id = a.provider_id and r.model_id = a.model_id",
        [poller.provider_id for poller in pollers],
        [poller.model_id for poller in pollers],
        [bare.get(poller.model_id) for poller in pollers],
    )
    peeks = {
        PollKey(row["provider_id"], row["model_id"]): Peek(
            known_model=row["known"], any_bid=row["some"], any_open=row["any_open"], anything=row["anything"]
        )
        for row in rows
    }
    return snapshot_of(rows), peeks


async def poll(
    connection: Connection, asks: Sequence[LeaseRequest], wanted: JobFilter, *, lease_ms: int, custody: int | None
) -> tuple[Snapshot, dict[PollKey, list[HeldJob]]]:
    """Lease each the oldest matching jobs that nobody holds, until it holds as many as it asks for (earlier leases
    count); all that each then holds, oldest first. One ask of each poller, and one place for all asks of a model.

    `custody`: open bids that were posted at or before this block are left out.
    """
    rows = await connection.fetch(
        f"select page.*, {SNAPSHOT} from index_position p left join lateral (select {JOB_COLUMNS}, j.posted_log,"
        f" h.is_new, h.poller"
        " from poll_jobs($1, $2, $3, $4, $5, $6 * interval '1 millisecond', p.block_time, $7, $8, $9, $10, $11) h"
        # `offset 0` has the leased ones looked up, whatever a generic plan guesses that the filters leave of the open.
        " cross join lateral (select * from jobs k where k.job_id = h.leased_job offset 0) j"
        f" where {_OPEN}"
        # What is held from an earlier poll is told only to one that asks for such jobs.
        " and ($8::numeric is null or j.rate_in >= $8) and ($9::numeric is null or j.rate_out >= $9)"
        " and ($10::bytea is null or j.owner = $10) and ($11::bigint is null or j.posted_block <= $11)) page on true"
        " order by page.posted_block, page.posted_log",
        [ask.poller.provider_id for ask in asks],
        [ask.poller.model_id for ask in asks],
        [ask.free for ask in asks],
        [ask.after.block for ask in asks],
        [ask.after.log for ask in asks],
        lease_ms,
        custody,
        wanted.min_rate_in,
        wanted.min_rate_out,
        wanted.owner,
        wanted.posted_before,
    )
    held: dict[PollKey, list[HeldJob]] = {ask.poller: [] for ask in asks}
    for row in rows:
        if row["job_id"] is not None:
            held[PollKey(row["poller"], row["model_id"])].append(_held(row))
    return snapshot_of(rows), held


def _held(row: asyncpg.Record) -> HeldJob:
    return HeldJob(job_row(row), row["is_new"], int(row["amount"]), JobPlace(row["posted_block"], row["posted_log"]))


async def hold_back(connection: Connection, job_ids: Sequence[bytes]) -> None:
    """Their payment cannot be had: nobody is leased them before a wait that doubles each time. Never for good: a
    reorganisation may give even a used authorisation back."""
    await _hold_back(connection, "j.job_id = any($3)", job_ids)


async def hold_back_beyond(connection: Connection, owner: bytes, balance: int) -> None:
    """The owner has no more than `balance`: hold back all of its open jobs that cost more."""
    await _hold_back(connection, f"j.owner = $3 and {_AMOUNT} > $4::numeric", owner, balance)


async def _hold_back(connection: Connection, which: str, *values: object) -> None:
    await connection.execute(
        "insert into leases as l (job_id, provider_id, model_id, expires_at, unpaid)"
        f" select j.job_id, {_NOBODY}, j.model_id, clock_timestamp() + $1, 1 from jobs j where {_OPEN} and {which}"
        f" order by j.job_id limit {_MOST_HELD_BACK} on conflict (job_id) do update"
        " set provider_id = excluded.provider_id, unpaid = l.unpaid + 1,"
        " expires_at = clock_timestamp() + least($1 * 2 ^ least(l.unpaid, 20), $2)"
        f" where l.provider_id <> {_NOBODY} or l.expires_at <= clock_timestamp()",
        _FIRST_WAIT,
        _LONGEST_WAIT,
        *values,
    )


async def drop_lapsed(connection: Connection) -> None:
    """Those of jobs whose payment was missing are kept as long as the job is open: the next wait is longer."""
    await connection.execute(
        "delete from leases l where (l.expires_at < clock_timestamp() and l.unpaid = 0) or (l.unpaid > 0"
        f" and not exists (select 1 from jobs j where j.job_id = l.job_id and {_OPEN}))"
    )
