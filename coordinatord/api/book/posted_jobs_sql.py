"""Terms that jobs were posted with. Every call of the job registry about a job carries these terms."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from common.api.states import JobState
from common.messages.jobs import Order
from common.quotes import FeeTerms
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection

ORDER_INTEGER_FIELDS: Final = (
    *("model_id", "sla_secs", "rate_in", "rate_out"),
    *("units_in", "units_out", "designated", "expires_at"),
)
_COLUMNS: Final = ", ".join(
    f"j.{name}" for name in ("job_id", "owner", "c", *ORDER_INTEGER_FIELDS, "fee_bps", "gas_fee", "pay_sig")
)
_SELECT_POSTED_BY_IDS: Final = f"select {_COLUMNS} from jobs j where j.job_id = any($1)"


async def read_posted_terms(
    connection: PreparedConnection, job_ids: Sequence[bytes]
) -> dict[bytes, RegisteredJob | None]:
    """Return the terms of each job, None for a job that the index does not know."""
    found: dict[bytes, RegisteredJob | None] = dict.fromkeys(job_ids)
    found |= {
        row["job_id"]: RegisteredJob(posted_order(row), row["pay_sig"])
        for row in await connection.fetch(_SELECT_POSTED_BY_IDS, job_ids)
    }
    return found


def posted_order(row: Mapping[str, Any]) -> PostedOrder:
    """Return the posted order from a row that has the columns of the order, its owner and its fee terms."""
    order = Order(c=row["c"], **{name: int(row[name]) for name in ORDER_INTEGER_FIELDS})
    return PostedOrder(order, row["owner"], FeeTerms(row["fee_bps"], int(row["gas_fee"])))


async def read_overdue_jobs(
    connection: Connection, limit: int, except_for: Collection[bytes]
) -> dict[bytes, PostedOrder]:
    """Return the terms of claimed jobs that are past their window at the indexed block, by id, oldest claim first.
    Leave out the jobs in `except_for`. Return nothing while the index is being rebuilt."""
    rows = await connection.fetch(
        f"select {_COLUMNS} from jobs j, index_position p"
        f" where j.state = {JobState.CLAIMED} and not p.rebuilding"
        " and j.claimed_at + j.sla_secs < p.block_time and not j.job_id = any($2::bytea[])"
        " order by j.claimed_at limit $1",
        limit,
        list(except_for),
    )
    return {row["job_id"]: posted_order(row) for row in rows}
