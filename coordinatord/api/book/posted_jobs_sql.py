"""Terms that jobs were posted with. Every call of the registry about a job carries them."""

from collections.abc import Collection, Sequence
from typing import Final

import asyncpg

from common.api.states import JobState
from common.messages.jobs import Order
from common.quotes import FeeTerms
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob
from coordinatord.storage.database.connections import Connection, PreparedConnection

_COLUMNS: Final = (
    "j.job_id, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out, j.units_in,"
    " j.units_out, j.designated, j.expires_at, j.owner, j.fee_bps, j.gas_fee::text as gas_fee, j.pay_sig"
)
_POSTED_BY_IDS: Final = f"select {_COLUMNS} from jobs j where j.job_id = any($1)"


async def read_posted(line: PreparedConnection, job_ids: Sequence[bytes]) -> dict[bytes, RegisteredJob | None]:
    """Return the terms of each job, None for a job that the index does not know."""
    found: dict[bytes, RegisteredJob | None] = dict.fromkeys(job_ids)
    found |= {row["job_id"]: _posted_job(row) for row in await line.fetch(_POSTED_BY_IDS, job_ids)}
    return found


def _posted_job(row: asyncpg.Record) -> RegisteredJob:
    order = Order(
        c=row["c"],
        model_id=row["model_id"],
        sla_secs=row["sla_secs"],
        rate_in=int(row["rate_in"]),
        rate_out=int(row["rate_out"]),
        units_in=row["units_in"],
        units_out=row["units_out"],
        designated=row["designated"],
        expires_at=row["expires_at"],
    )
    return RegisteredJob(
        PostedOrder(order, row["owner"], FeeTerms(row["fee_bps"], int(row["gas_fee"]))), row["pay_sig"]
    )


async def overdue_jobs(connection: Connection, limit: int, but_not: Collection[bytes]) -> dict[bytes, PostedOrder]:
    """Return the terms of claimed jobs whose provider missed the window, by id, oldest claim first, except `but_not`.
    Time is the chain's. Return nothing while the index is rebuilt."""
    rows = await connection.fetch(
        f"select {_COLUMNS} from jobs j, index_position p"
        f" where j.state = {JobState.CLAIMED} and not p.rebuilding"
        " and j.claimed_at + j.sla_secs < p.block_time and not j.job_id = any($2::bytea[])"
        " order by j.claimed_at limit $1",
        limit,
        list(but_not),
    )
    return {row["job_id"]: _posted_job(row).posted for row in rows}
