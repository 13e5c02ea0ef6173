"""Progress of jobs before their blocks: told from the outbox, to whoever follows a job with `provisional=1`.

    op stored ─► outbox ─► notice ─► hub ─► those who follow its job     GET /v1/jobs/{id}/progress reads the same
    op signed, mined, refused ──┘   (or a look once a second)

The outbox is where an op cannot be lost any more: what is told as `stored` will be sent, by this process or another.
Nothing of it is true before the chain has it; each step says what it rests on.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal

import anyio
import msgspec
import structlog

from common.api.progress import ProgressOp, ProgressStep, ProvisionalJob, RestsOn
from common.api.shapes import OMITTED, Digits
from common.api.states import EndedBecause, JobState, JobStatus, job_status
from common.scalars import hex_of
from coordinatord.api.events.listeners import Listener, News
from coordinatord.api.events.progress_sql import Found, IndexedJob, RelayedOp, read_found
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, RELAY_ENDED, RELAY_QUEUED, Notices

log = structlog.get_logger(__name__)

_LOOK: Final = 1.0  # seconds until followed jobs are read without a notice: nobody is told of a signature
_TOGETHER: Final = 0.02  # seconds in which notices become one read
_SHARE: Final = 5  # a read that takes long is followed by a rest of so many times its length

_ORDER: Final[tuple[ProgressOp, ...]] = ("post", "claim", "settle", "fail", "cancel", "reclaim")
_RESTS_ON: Final[dict[str, RestsOn]] = {
    "queued": "stored",
    "signed": "broadcast",
    "mined": "block",
    "refused": "refused",
    "dropped": "refused",
}
# Status before and after each op that takes effect.
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
    """None where nothing is known of the job."""
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
    """The one of a kind that counts: mined, else the oldest under way, else the last that was refused."""
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
    """Steps that the index has from blocks, relayed here or not."""
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
    """What the index has decides; transaction and block are taken from the relay that brought it about."""
    if relayed is None or relayed.state != "mined":
        return indexed
    told = _step(indexed.op, relayed)
    same = indexed.op != "claim" or told.provider_id in (OMITTED, indexed.provider_id)
    if not same:
        return indexed
    return msgspec.structs.replace(
        indexed,
        tx_hash=told.tx_hash,
        block=indexed.block if indexed.block is not OMITTED else told.block,
        wallet=told.wallet,
    )


_encode: Final = msgspec.json.Encoder().encode


def message_of(progress: ProvisionalJob) -> bytes:
    """A message of a stream; it has no id, for there is nothing to come back to but the present."""
    return b"event: provisional\ndata: %s\n\n" % _encode(progress)


_News = tuple[str, bool, tuple[ProgressStep[Digits], ...]]


def _news(progress: ProvisionalJob) -> _News:
    """What followers are told of: the block moves all the time."""
    return progress.status, progress.provisional, progress.steps


class ProgressHub:
    """Progress of single jobs, and the news of those that are followed. `run` must be running."""

    def __init__(self, database: Database, notices: Notices) -> None:
        self._notices = notices
        self._reads = BatchedReads(database.prepared_connection(), read_found)
        self._line = database.prepared_connection()
        self._followers: dict[bytes, dict[Listener, None]] = {}
        self._told: dict[bytes, _News] = {}
        self._wake = Wake()

    async def read(self, job_id: bytes) -> ProvisionalJob | None:
        return progress_of(job_id, await self._reads.get(job_id))

    @asynccontextmanager
    async def following(self, job_id: bytes, listener: Listener) -> AsyncIterator[bytes]:
        """Tell the listener of each change. Gives the message of the present; empty where nothing is known."""
        self._followers.setdefault(job_id, {})[listener] = None
        try:
            present = await self.read(job_id)
            if present is not None:
                self._told.setdefault(job_id, _news(present))
            self._wake()
            yield b"" if present is None else message_of(present)
        finally:
            del self._followers[job_id][listener]
            if not self._followers[job_id]:
                del self._followers[job_id]
                self._told.pop(job_id, None)

    async def run(self) -> None:
        """Until cancelled."""

        def heard(_: str) -> None:
            if self._followers:
                self._wake()

        async with (
            self._notices.subscribe(RELAY_QUEUED, heard),
            self._notices.subscribe(RELAY_ENDED, heard),
            self._notices.subscribe(INDEX_MOVED, heard),
        ):
            while True:
                await self._wake.wait(_LOOK)
                if not self._followers:
                    continue
                await anyio.sleep(_TOGETHER)
                began = anyio.current_time()
                try:
                    await self._look()
                except Retryable as error:
                    log.warning("progress of jobs not read", reason=error.message)
                await anyio.sleep(_SHARE * (anyio.current_time() - began))

    async def _look(self) -> None:
        found = await read_found(self._line, list(self._followers))
        for job_id, each in found.items():
            progress, followers = progress_of(job_id, each), self._followers.get(job_id)
            if progress is None or not followers or self._told.get(job_id) == (news := _news(progress)):
                continue
            self._told[job_id] = news
            told = News((), message_of(progress))
            for listener in tuple(followers):
                listener.tell(told)
