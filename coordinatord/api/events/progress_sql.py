"""Reads of a job in the index, together with the job's ops in the outbox."""

from collections.abc import Sequence
from typing import Final

import attrs

from common.api.states import EndedBecause, JobState
from common.refusal import Refused
from coordinatord.chain.contracts.job_registry import decode_settle
from coordinatord.chain.relayer.endings_sql import IS_MINED_EXIT, IS_MINED_START
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

# Each condition must equal the condition of a partial index on `subject`.
_OP_CONDITIONS: Final = (
    "r.state in ('queued', 'signed')",
    IS_MINED_START,
    IS_MINED_EXIT,
    "r.state in ('refused', 'dropped') and r.kind in ('post', 'claim', 'settle', 'fail', 'cancel', 'reclaim')",
)
_UNION_OF_OPS: Final = " union all ".join(
    f"select r.* from relays r where r.subject = any($1::bytea[]) and {condition}" for condition in _OP_CONDITIONS
)
_SELECT_OPS: Final = (
    f"with ops as materialized ({_UNION_OF_OPS})"
    " select o.subject, case when o.kind = 'settle' then o.calldata end as settle, o.kind, o.state::text as state,"
    " o.reason, o.signer, v.provider_id,"
    " coalesce(t.mined_hash, (select x.hash from relay_tx_versions x where x.tx_id = t.id"
    "  and not x.fills order by x.created_at desc limit 1)) as tx_hash, t.block_number"
    " from ops o left join relay_txs t on t.id = o.tx_id"
    " left join providers v on v.operator = o.signer and o.kind in ('claim', 'settle', 'fail')"
    " order by o.id"
)
_EXPIRED_UNMARKED: Final = f"j.state = {JobState.OPEN} and j.expires_at < p.block_time"
_SELECT_JOBS: Final = (
    "select j.posted_block, j.provider_id,"
    f" case when {_EXPIRED_UNMARKED} then {JobState.CANCELLED}::smallint else j.state end as state,"
    f" case when {_EXPIRED_UNMARKED} then {EndedBecause.EXPIRY}::smallint else j.ended_because end as ended_because,"
    f" j.result_cid, j.completion_tok, j.job_id, {SNAPSHOT_COLUMNS}"
    " from index_position p left join jobs j on j.job_id = any($1::bytea[])"
)


@attrs.frozen(slots=True)
class RelayedOp:
    """Op in the outbox. `settle_content` is the result of a settle: content id and output units."""

    settle_content: tuple[str, int] | None
    kind: str
    state: str
    reason: str | None
    wallet: bytes | None
    provider_id: int | None
    tx_hash: bytes | None
    block_number: int | None


@attrs.frozen(slots=True)
class IndexedJob:
    posted_block: int
    provider_id: int
    state: int
    ended_because: int
    result_cid: str | None
    completion_tok: int


@attrs.frozen(slots=True)
class JobWithOps:
    """Job with its ops, in the order in which the ops were stored."""

    snapshot: Snapshot
    ops: tuple[RelayedOp, ...]
    job: IndexedJob | None


async def read_jobs_with_ops(connection: PreparedConnection, job_ids: Sequence[bytes]) -> dict[bytes, JobWithOps]:
    """Read jobs with their ops. Return a value for every id. The index is read last, so that an indexed op is not shown
    as provisional."""
    ops: dict[bytes, list[RelayedOp]] = {job_id: [] for job_id in job_ids}
    for row in await connection.fetch(_SELECT_OPS, job_ids):
        subject, settle, *others = row
        ops[subject].append(RelayedOp(_decode_settle(settle), *others))
    rows = await connection.fetch(_SELECT_JOBS, job_ids)
    snapshot = snapshot_from_rows(rows)
    jobs = {row["job_id"]: IndexedJob(*row[:6]) for row in rows if row["job_id"] is not None}
    return {job_id: JobWithOps(snapshot, tuple(ops[job_id]), jobs.get(job_id)) for job_id in job_ids}


def _decode_settle(calldata: bytes | None) -> tuple[str, int] | None:
    try:
        return None if calldata is None else decode_settle(calldata)
    except Refused:  # calldata of another form, such as several calls
        return None
