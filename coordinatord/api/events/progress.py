"""Progress of a job: its state, and its ops that are not mined yet.

An op in the outbox (`stored`) cannot be lost, because this process or another will send it. An op is not final before
it is mined, so each step names the evidence that it rests on.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from common.api.progress import ProgressOp, ProgressStep, ProvisionalJob, RestsOn
from common.api.shapes import OMITTED, Digits
from common.api.states import EndedBecause, JobState, JobStatus, job_status
from common.scalars import hex_of
from coordinatord.api.events.progress_sql import IndexedJob, JobWithOps, RelayedOp

_OP_ORDER: Final[tuple[ProgressOp, ...]] = ("post", "claim", "settle", "fail", "cancel", "reclaim")

# Evidence that a step rests on, by the state of its op in the outbox. A dropped op counts as refused.
_EVIDENCE_BY_RELAY_STATE: Final[dict[str, RestsOn]] = {
    "queued": "stored",
    "signed": "broadcast",
    "mined": "block",
    "refused": "refused",
    "dropped": "refused",
}
# Status before and after each op.
_STATUS_CHANGES: Final[dict[str, tuple[JobStatus | None, JobStatus]]] = {
    "post": (None, "queued"),
    "claim": ("queued", "in_progress"),
    "settle": ("in_progress", "completed"),
    "fail": ("in_progress", "failed"),
    "cancel": ("queued", "cancelled"),
    "reclaim": ("in_progress", "failed"),
}
_OP_BY_END: Final[dict[int, ProgressOp]] = {
    EndedBecause.SETTLE: "settle",
    EndedBecause.CANCEL: "cancel",
    EndedBecause.PROVIDER_FAIL: "fail",
    EndedBecause.RECLAIM: "reclaim",
}


def build_progress(job_id: bytes, job_with_ops: JobWithOps) -> ProvisionalJob | None:
    """Return the progress of a job, or None if neither the outbox nor the index has the job."""
    job, ops = job_with_ops.job, job_with_ops.ops
    before = job_status(job.state, job.ended_because) if job is not None else None
    after: JobStatus | None = before
    under_way = [op for op in ops if _EVIDENCE_BY_RELAY_STATE[op.state] != "refused"]
    for op in under_way:
        if op.kind in _STATUS_CHANGES and _STATUS_CHANGES[op.kind][0] == after:
            after = _STATUS_CHANGES[op.kind][1]
    status: JobStatus | Literal["refused"] | None = after
    if status is None and any(op.kind == "post" for op in ops):
        status = "refused"
    if status is None:
        return None
    indexed_steps = _indexed_steps(job) if job is not None else {}
    steps: list[ProgressStep[Digits]] = []
    for kind in _OP_ORDER:
        relayed = _relevant_op(kind, ops)
        if kind in indexed_steps:
            steps.append(_add_relay(indexed_steps[kind], relayed))
        elif relayed is not None:
            steps.append(_relay_step(kind, relayed))
    provisional = status not in (before, "refused")
    return ProvisionalJob(hex_of(job_id), status, provisional, tuple(steps), str(job_with_ops.snapshot.block_number))


def _relevant_op(kind: str, ops: Iterable[RelayedOp]) -> RelayedOp | None:
    """Return the relevant op of a kind: the mined op, otherwise the oldest pending op, otherwise the last refused
    op."""
    of_kind = [op for op in ops if op.kind == kind]
    mined = [op for op in of_kind if op.state == "mined"]
    live = [op for op in of_kind if op.state in ("queued", "signed")]
    return next(iter(mined[-1:] or live[:1] or of_kind[-1:]), None)


def _relay_step(kind: ProgressOp, op: RelayedOp) -> ProgressStep[Digits]:
    cid, units = op.settle_content if op.settle_content is not None else (None, None)
    rests_on = _EVIDENCE_BY_RELAY_STATE[op.state]
    of_provider = kind in ("claim", "settle", "fail")
    return ProgressStep(
        kind,
        rests_on,
        hex_of(op.tx_hash) if op.tx_hash is not None else OMITTED,
        str(op.block_number) if rests_on == "block" and op.block_number is not None else OMITTED,
        op.reason or "unknown" if rests_on == "refused" else OMITTED,
        hex_of(op.wallet) if of_provider and op.wallet is not None else OMITTED,
        str(op.provider_id) if op.provider_id is not None else OMITTED,
        cid if cid is not None else OMITTED,
        str(units) if units is not None else OMITTED,
    )


def _indexed_steps(job: IndexedJob) -> Mapping[ProgressOp, ProgressStep[Digits]]:
    """Return the indexed steps, including ops that other coordinators relayed."""
    steps: dict[ProgressOp, ProgressStep[Digits]] = {"post": _block_step("post", str(job.posted_block))}
    if job.provider_id:
        steps["claim"] = _block_step("claim", provider_id=str(job.provider_id))
    ending = _OP_BY_END.get(job.ended_because)
    if job.state == JobState.SETTLED:
        cid = job.result_cid if job.result_cid is not None else OMITTED
        steps["settle"] = _block_step("settle", OMITTED, str(job.provider_id), cid, str(job.completion_tok))
    elif ending is not None:
        steps[ending] = _block_step(ending)
    return steps


def _block_step(
    op: ProgressOp,
    block: str = OMITTED,
    provider_id: str = OMITTED,
    result_cid: str = OMITTED,
    completion_tok: str = OMITTED,
) -> ProgressStep[Digits]:
    return ProgressStep(op, "block", OMITTED, block, OMITTED, OMITTED, provider_id, result_cid, completion_tok)


def _add_relay(indexed: ProgressStep[Digits], relayed: RelayedOp | None) -> ProgressStep[Digits]:
    """Return a step of the index, with the transaction and block of its relay if this deployment relayed the op."""
    if relayed is None or relayed.state != "mined":
        return indexed
    step = _relay_step(indexed.op, relayed)
    if indexed.op == "claim" and step.provider_id not in (OMITTED, indexed.provider_id):
        return indexed
    return msgspec.structs.replace(
        indexed,
        tx_hash=step.tx_hash,
        block=indexed.block if indexed.block is not OMITTED else step.block,
        wallet=step.wallet,
    )
