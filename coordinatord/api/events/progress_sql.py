"""Ops of a job in the outbox, and the job in the index."""

from collections.abc import Sequence
from typing import Final

import attrs

from common.api.states import EndedBecause, JobState
from common.refusal import Refused
from coordinatord.chain.contracts.job_registry import read_settle
from coordinatord.chain.relayer.endings_sql import BEGINNING, ENDING
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of

# Each is the condition of an index on `subject`.
_WHICH: Final = (
    "r.state in ('queued', 'signed')",
    BEGINNING,
    ENDING,
    "r.state in ('refused', 'dropped') and r.kind in ('post', 'claim', 'settle', 'fail', 'cancel', 'reclaim')",
)
_OPS: Final = " union all ".join(
    f"select r.* from relays r where r.subject = any($1::bytea[]) and {which}" for which in _WHICH
)
_RELAYED: Final = (
    f"with ops as materialized ({_OPS})"
    " select o.id, o.subject, o.kind, o.state::text as state, o.reason, o.signer, v.provider_id,"
    " case when o.kind = 'settle' then o.calldata end as settle, t.block_number,"
    " coalesce(t.mined_hash, (select x.hash from relay_tx_versions x where x.tx_id = t.id"
    "  and not x.fills order by x.created_at desc limit 1)) as tx_hash"
    " from ops o left join relay_txs t on t.id = o.tx_id"
    " left join providers v on v.operator = o.signer and o.kind in ('claim', 'settle', 'fail')"
    " order by o.id"
)
_UNMARKED: Final = f"j.state = {JobState.OPEN} and j.expires_at < p.block_time"
_INDEXED: Final = (
    "select j.job_id, j.posted_block, j.provider_id, j.result_cid, j.completion_tok,"
    f" case when {_UNMARKED} then {JobState.CANCELLED}::smallint else j.state end as state,"
    f" case when {_UNMARKED} then {EndedBecause.EXPIRY}::smallint else j.ended_because end as ended_because,"
    f" {SNAPSHOT} from index_position p left join jobs j on j.job_id = any($1::bytea[])"
)


@attrs.frozen(slots=True)
class RelayedOp:
    """Op in the outbox. `settled` is the result of a settle: content id and output units."""

    id: int
    kind: str
    state: str
    reason: str | None
    wallet: bytes | None
    provider_id: int | None
    settled: tuple[str, int] | None
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
class Found:
    """Job with its ops, in the order in which these were stored."""

    snapshot: Snapshot
    ops: tuple[RelayedOp, ...]
    job: IndexedJob | None


async def read_found(line: PreparedConnection, job_ids: Sequence[bytes]) -> dict[bytes, Found]:
    """Read jobs. Every key gets a value. The index is read last, so that an indexed op is not shown as provisional."""
    ops: dict[bytes, list[RelayedOp]] = {job_id: [] for job_id in job_ids}
    for row in await line.fetch(_RELAYED, job_ids):
        op = RelayedOp(
            *(row["id"], row["kind"], row["state"], row["reason"], row["signer"], row["provider_id"]),
            *(_settled(row["settle"]), row["tx_hash"], row["block_number"]),
        )
        ops[row["subject"]].append(op)
    rows = await line.fetch(_INDEXED, job_ids)
    snapshot = snapshot_of(rows)
    names = [field.name for field in attrs.fields(IndexedJob)]
    jobs = {row["job_id"]: IndexedJob(*(row[name] for name in names)) for row in rows if row["job_id"] is not None}
    return {job_id: Found(snapshot, tuple(ops[job_id]), jobs.get(job_id)) for job_id in job_ids}


def _settled(calldata: bytes | None) -> tuple[str, int] | None:
    try:
        return None if calldata is None else read_settle(calldata)
    except Refused:  # calldata of another form, such as several calls
        return None
