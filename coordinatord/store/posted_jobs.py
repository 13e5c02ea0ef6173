"""What jobs were posted on, from the index: every call of the registry about a job carries it."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from common.messages.jobs import Order
from common.quotes import Terms
from coordinatord.chain.job_registry import Posted, PostedJob
from coordinatord.store.lines import Line

COLUMNS: Final = (
    "j.job_id, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out, j.units_in,"
    " j.units_out, j.designated, j.expires_at, j.owner, j.fee_bps, j.gas_fee::text as gas_fee, j.pay_sig"
)
_BY_IDS: Final = f"select {COLUMNS} from jobs j where j.job_id = any($1)"


async def read_posted(line: Line, job_ids: Sequence[bytes]) -> dict[bytes, PostedJob | None]:
    """None for a job that the index does not know."""
    found: dict[bytes, PostedJob | None] = dict.fromkeys(job_ids)
    found |= {row["job_id"]: posted_job(row) for row in await line.fetch(_BY_IDS, job_ids)}
    return found


def posted_job(row: asyncpg.Record) -> PostedJob:
    """Of a record with COLUMNS."""
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
    return PostedJob(Posted(order, row["owner"], Terms(row["fee_bps"], int(row["gas_fee"]))), row["pay_sig"])
