"""Progress of a job: its state, and its ops that are not mined yet.

An op in the outbox (`stored`) cannot be lost: this process or another will send it. It is not final before it is mined,
so each step names its evidence.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from common.api.progress import ProgressOp, ProgressStep, ProvisionalJob, RestsOn
from common.api.shapes import OMITTED, Digits
from common.api.states import EndedBecause, JobState, JobStatus, job_status
from common.scalars import hex_of
from coordinatord.api.events.progress_sql import Found, IndexedJob, RelayedOp

_ORDER: Final[tuple[ProgressOp, ...]] = ("post", "claim", "settle", "fail", "cancel", "reclaim")
_RESTS_ON: Final[dict[str, RestsOn]] = {
    "queued": "stored",
    "signed": "broadcast",
    "mined": "block",
    "refused": "refused",
    "dropped": "refused",
}
# Status before and after each op.
_LEADS: Final[dict[str, tuple[JobStatus | None, JobStatus]]] = {
    "post": (None, "queued"),
    "claim": ("queued", "in_progress"),
    "settle": ("in_progress", "completed"),
    "fail": ("in_progress", "failed"),
    "cancel": ("queued", "cancelled"),
    "reclaim": ("in_progress", "failed"),
}
_ENDED_BY: Final[dict[int, ProgressOp]] = {
    EndedBecause.SETTLE: "settle",
    EndedBecause.CANCEL: "cancel",
    EndedBecause.PROVIDER_FAIL: "fail",
    EndedBecause.RECLAIM: "reclaim",
}


def progress_of(job_id: bytes, found: Found) -> ProvisionalJob | None:
    """Return the progress of a job. Return None when neither the outbox nor the index has it."""
    job, ops = found.job, found.ops
    before = job_status(job.state, job.ended_because) if job is not None else None
    after: JobStatus | None = before
    under_way = [op for op in ops if _RESTS_ON[op.state] != "refused"]
    for op in under_way:
        if op.kind in _LEADS and _LEADS[op.kind][0] == after:
            after = _LEADS[op.kind][1]
    status: JobStatus | Literal["refused"] | None = after
    if status is None and any(op.kind == "post" for op in ops):
        status = "refused"
    if status is None:
        return None
    happened = _happened(job) if job is not None else {}
    steps: list[ProgressStep[Digits]] = []
    for kind in _ORDER:
        relayed = _relayed(kind, ops)
        if kind in happened:
            steps.append(_indexed_step(happened[kind], relayed))
        elif relayed is not None:
            steps.append(_step(kind, relayed))
    provisional = status not in (before, "refused")
    return ProvisionalJob(hex_of(job_id), status, provisional, tuple(steps), str(found.snapshot.block_number))


def _relayed(kind: str, ops: Iterable[RelayedOp]) -> RelayedOp | None:
    """Return the op of a kind that counts: a mined one, the oldest under way, or the last that was refused."""
    own = [op for op in ops if op.kind == kind]
    mined = [op for op in own if op.state == "mined"]
    live = [op for op in own if op.state in ("queued", "signed")]
    return next(iter(mined[-1:] or live[:1] or own[-1:]), None)


def _step(kind: ProgressOp, op: RelayedOp) -> ProgressStep[Digits]:
    cid, units = op.settled if op.settled is not None else (None, None)
    rests_on = _RESTS_ON[op.state]
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


def _happened(job: IndexedJob) -> Mapping[ProgressOp, ProgressStep[Digits]]:
    """Return the steps that the index has from blocks, relayed here or not."""
    steps: dict[ProgressOp, ProgressStep[Digits]] = {"post": _in_block("post", str(job.posted_block))}
    if job.provider_id:
        steps["claim"] = _in_block("claim", provider_id=str(job.provider_id))
    ending = _ENDED_BY.get(job.ended_because)
    if job.state == JobState.SETTLED:
        cid = job.result_cid if job.result_cid is not None else OMITTED
        steps["settle"] = _in_block("settle", OMITTED, str(job.provider_id), cid, str(job.completion_tok))
    elif ending is not None:
        steps[ending] = _in_block(ending)
    return steps


def _in_block(
    op: ProgressOp,
    block: str = OMITTED,
    provider_id: str = OMITTED,
    result_cid: str = OMITTED,
    completion_tok: str = OMITTED,
) -> ProgressStep[Digits]:
    return ProgressStep(op, "block", OMITTED, block, OMITTED, OMITTED, provider_id, result_cid, completion_tok)


def _indexed_step(indexed: ProgressStep[Digits], relayed: RelayedOp | None) -> ProgressStep[Digits]:
    """Return a step of the index, with transaction and block of the relay that caused it."""
    if relayed is None or relayed.state != "mined":
        return indexed
    step = _step(indexed.op, relayed)
    if indexed.op == "claim" and step.provider_id not in (OMITTED, indexed.provider_id):
        return indexed
    return msgspec.structs.replace(
        indexed,
        tx_hash=step.tx_hash,
        block=indexed.block if indexed.block is not OMITTED else step.block,
        wallet=step.wallet,
    )
