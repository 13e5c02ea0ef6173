"""Batches of `/v1/batches`: lines of OpenAI's form, sealed one by one, posted as one batch of the market, opened again.

    validating ── each line read ── posting ── in_progress ── finalizing ── completed, expired, cancelled
         └─► failed: a line is wrong, with its number                     └─► results, in OpenAI's form, with custom_id

A batch goes on by itself, and after a restart from where it was: the market's own batch carries our id, so that one
whose answer was lost is found again and not made twice.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio
import attrs
import msgspec
from anyio import to_thread

from common.api import limits
from common.quotes import FeeTerms
from svc.batches.preparation import PreparedBatch
from svc.batches.results import BatchResult
from svc.errors import ConnectionFailed, SvcError
from svc.records import Batch
from svc.serve.answers import answer_of
from svc.serve.attempts import Trade, cost_in_all, may_have_arrived
from svc.serve.batch_files import BatchInputs, BatchResultFiles
from svc.serve.batch_lines import (
    OPENAI_CODES,
    WINDOWS,
    BatchRequest,
    StoredBatch,
    market_line,
    read_line,
    shared_terms,
    told_error,
)
from svc.serve.files import LocalFiles
from svc.serve.keys import ApiKey
from svc.serve.ledger import LedgerJob, LedgerPurchase
from svc.serve.media_answers import Bought
from svc.serve.problems import Problem, StorageFailed, invalid, problem_of, storing
from svc.serve.requests import Wanted

Json = dict[str, Any]

BATCH: Final = "batch"
MARK: Final = "svc-serve"  # of the market's batch: our id, for finding it again
_LOOK_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 15.0
_MOST_ERRORS: Final = 100
_MOST_LOOKED: Final = 1000
_MOST_LINES: Final = limits.BATCH_LINES
SEVERAL: Final = "(several)"  # models of one batch, in the ledger


@attrs.define(eq=False)
class LocalBatches:
    trade: Trade
    files: LocalFiles
    sleep: Callable[[float], Any] = anyio.sleep
    _running: dict[str, StoredBatch] = attrs.field(factory=dict)

    @property
    def _inputs(self) -> BatchInputs:
        return BatchInputs(self.files)

    # --- what the routes ask for ------------------------------------------------------------------------------

    async def begin(self, key: ApiKey, batch: StoredBatch) -> StoredBatch:
        """The input is kept beside its file, which may be deleted, or expire, before the batch has ended."""
        await self._inputs.hold(batch.input_file_id, batch.id)
        try:
            await self._save(batch)
        except StorageFailed:
            await self._inputs.release(batch.id)
            raise
        self._carry_on(batch, key)
        return batch

    async def get(self, key: str, batch_id: str) -> StoredBatch:
        if (running := self._running.get(batch_id)) is not None and running.key == key:
            return running
        body = await self.trade.ledger.get(BATCH, batch_id, key)
        if body is None:
            raise Problem(404, f"there is no batch {batch_id}", code="batch_not_found", param="batch_id")
        return msgspec.json.decode(body, type=StoredBatch)

    async def all(self, key: str) -> list[StoredBatch]:
        stored = [msgspec.json.decode(body, type=StoredBatch) for body in await self.trade.ledger.all(BATCH, key)]
        return [self._running.get(batch.id, batch) for batch in stored]

    async def cancel(self, key: str, batch_id: str) -> StoredBatch:
        """Lines that are posted go on; the others will not be."""
        batch = await self.get(key, batch_id)
        if batch.ended:
            message = f"batch {batch_id} is {batch.status}: only one that goes on can be cancelled"
            raise Problem(409, message, code="batch_not_cancellable", param="batch_id")
        if batch.market_id is not None:  # asked again, too: an answer may have been lost
            await self.trade.client.batches.cancel(batch.market_id)
        if not batch.cancelling:
            batch.cancelling = True
            self._mark(batch, "cancelling")
            await self._save(batch)
        return batch

    async def resume(self, keys: Callable[[str], ApiKey | None]) -> None:
        """Go on with what had not ended. One of a key that is no more there cannot be read: it stays as it is."""
        for body in await self.trade.ledger.all(BATCH, None):
            batch = msgspec.json.decode(body, type=StoredBatch)
            key = keys(batch.key)
            if not batch.ended and key is not None:
                self._carry_on(batch, key)

    # --- the way of one batch ---------------------------------------------------------------------------------

    def _carry_on(self, batch: StoredBatch, key: ApiKey) -> None:
        self._running[batch.id] = batch
        self.trade.start("batch", self._carry, batch, key)

    async def _carry(self, batch: StoredBatch, key: ApiKey) -> None:
        """Run a batch to its end. Never raises: the batch's `errors` say what went wrong.

        A batch that may be paid waits for a coordinator that is down and for a disk that is full.
        """
        try:
            while not batch.ended:
                try:
                    await self._carried(batch, key)
                except SvcError as error:
                    if not error.retryable or not self._goes_on(batch):
                        raise
                except StorageFailed as failed:
                    if not self._goes_on(batch):
                        raise
                    self.trade.say(f"batch {batch.id} waits: {failed.message}")
                else:
                    continue
                await self.sleep(_AGAIN_SECONDS)
        except Problem as problem:
            await self._fail(batch, [told_error(problem)])
        except SvcError as error:
            await self._fail(batch, [told_error(problem_of(error))])
        except Exception as error:
            self.trade.say(f"batch {batch.id} failed unexpectedly: {type(error).__name__}: {error}")
            await self._fail(batch, [{"code": "internal_error", "message": "svc serve failed unexpectedly"}])
        finally:
            self._running.pop(batch.id, None)

    def _goes_on(self, batch: StoredBatch) -> bool:
        """It is posted, or may be, or there is time left for it."""
        ends = batch.created_at + WINDOWS[batch.completion_window]
        posted = batch.market_id is not None or batch.status == "posting"
        return posted or self.trade.clock() + _AGAIN_SECONDS <= ends

    async def _carried(self, batch: StoredBatch, key: ApiKey) -> None:
        """From wherever it is to its end. Raises Problem, SvcError."""
        if batch.status == "posting" and batch.market_id is None:  # by an attempt whose answer was lost
            batch.market_id = await self._posted_before(batch)
            if batch.market_id is None:
                batch.status = "validating"
                await self._release(batch)
        requests, errors = await self._read(batch, key)
        if errors and batch.market_id is None:
            await self._fail(batch, errors)
            return
        batch.counts["total"] = len(requests)
        if batch.market_id is None and self.trade.clock() > batch.created_at + WINDOWS[batch.completion_window]:
            await self._end(batch, "expired", 0)
            return
        if batch.market_id is None and not batch.cancelling:
            batch.market_id = await self._post(batch, [request for request in requests if request is not None])
        if batch.market_id is None:
            await self._end(batch, "cancelled", 0)
            return
        batch.status = "in_progress"
        self._mark(batch, "in_progress")
        await self._save(batch)
        if batch.cancelling:  # asked for while it was posted
            await self.trade.client.batches.cancel(batch.market_id)
        ended = await self.trade.client.batches.wait(
            batch.market_id, every=_LOOK_SECONDS, progress=lambda seen: self._count(batch, seen)
        )
        await self._finish(batch, key, ended, requests)

    async def _read(self, batch: StoredBatch, key: ApiKey) -> tuple[list[BatchRequest | None], list[Json]]:
        """Every line, None for one that cannot be, and what is wrong with the first hundred of those."""
        content = await self._inputs.read(batch.key, batch.input_file_id, batch.id)
        requests: list[BatchRequest | None] = []
        errors: list[Json] = []
        seen: set[str] = set()
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip():
                continue
            if len(requests) == _MOST_LINES:
                raise invalid(f"a batch has at most {_MOST_LINES} lines", "input_file_id", "too_many_lines")
            try:
                read = await read_line(self.trade.prices, batch, key, line)
                if read.custom_id in seen:
                    raise invalid(f"custom_id {read.custom_id!r} is that of an earlier line", "custom_id")
                seen.add(read.custom_id)
                requests.append(read)
            except Problem as problem:
                requests.append(None)
                if len(errors) < _MOST_ERRORS:
                    errors.append(told_error(problem) | {"line": number})
        if not requests and not errors:
            errors = [told_error(invalid("the file must hold at least one line", "input_file_id", "empty_file"))]
        return requests, errors

    async def _post(self, batch: StoredBatch, requests: list[BatchRequest]) -> str | None:
        """The market's id of it; None where it was cancelled meanwhile. Raises Problem, SvcError, with nothing posted
        unless the batch is left `posting`."""
        trade = self.trade
        providers, offer = shared_terms(requests)
        prepared = await trade.client.batches.prepare(
            [market_line(request) for request in requests],
            window=batch.completion_window,
            providers=providers,
            offer=offer,
            max_amount=trade.settings.budget.per_batch,
            max_line_amount=trade.settings.budget.per_request,
        )
        if batch.cancelling:
            return None
        await self._reserve(batch, prepared, [request.wanted for request in requests])
        batch.status, batch.amount = "posting", str(prepared.amount)
        await self._save(batch)
        try:
            made = await trade.client.batches.create(prepared, metadata={MARK: batch.id})
        except SvcError as failed:
            if may_have_arrived(failed):  # it is looked for by its mark, before it is posted again
                raise ConnectionFailed(f"no word of whether batch {batch.id} was posted: {failed.message}") from None
            batch.status = "validating"
            await self._release(batch)
            raise
        return made.id

    async def _reserve(self, batch: StoredBatch, prepared: PreparedBatch, wanted: Sequence[Wanted]) -> None:
        trade, now = self.trade, self.trade.clock()
        trade.budgets.reserve(batch.key, batch.id, prepared.amount, now)
        names = {request.name for request in wanted}, {request.model.id for request in wanted}
        name, model = (each.pop() if len(each) == 1 else SEVERAL for each in names)
        row = LedgerPurchase(batch.id, now, batch.key, BATCH, name, model, batch.input_file_id, None)
        if not await trade.ledger.jobs_of(batch.id):
            job = LedgerJob(batch.id, batch.id, now, 0, prepared.amount, prepared.fees)
            await trade.ledger.add_purchase(row, job)
        else:  # tried before: the amount of this attempt counts
            await trade.ledger.renew_job(batch.id, now, prepared.amount, prepared.fees)

    async def _release(self, batch: StoredBatch) -> None:
        self.trade.budgets.settle(batch.id, 0, self.trade.clock())
        await self.trade.ledger.end_job(batch.id, "unpaid", 0)

    async def _posted_before(self, batch: StoredBatch) -> str | None:
        """The market's batch that carries our id."""
        after: str | None = None
        for _ in range(_MOST_LOOKED // 100):
            page = await self.trade.client.batches.list(limit=100, after=after)
            for one in page.data:
                if (one.metadata or {}).get(MARK) == batch.id:
                    return one.id
            if not page.has_more or page.data[-1].created_at < batch.created_at:
                return None
            after = page.last_id
        return None

    # --- its end ----------------------------------------------------------------------------------------------

    async def _finish(self, batch: StoredBatch, key: ApiKey, ended: Batch, requests: list[BatchRequest | None]) -> None:
        batch.status = "finalizing"
        self._mark(batch, "finalizing")
        await self._save(batch)
        rows = await self.trade.ledger.jobs_of(batch.id)
        terms = rows[0].terms if rows else FeeTerms(0, 0)
        cost, counts = 0, {True: 0, False: 0}
        with storing(), BatchResultFiles(self.files.folder, batch.id) as written:
            async for result in self.trade.client.batches.results(ended):
                number = int(result.id.rpartition("_")[2])  # batch_req_<batch>_<line>, blank lines not counted
                request = requests[number - 1] if 0 < number <= len(requests) else None
                line, paid = await self._told(result, request, terms)
                good = line["error"] is None
                cost, counts[good] = cost + paid, counts[good] + 1
                await to_thread.run_sync(written.add, line, good)
            batch.counts = {"total": len(requests), "completed": counts[True], "failed": counts[False]}
            expires_at = None if batch.output_seconds is None else int(self.trade.clock()) + batch.output_seconds
            for name, path in written.finished():
                if getattr(batch, f"{name}_file_id") is not None:
                    continue  # stored before the disk was full
                filename = f"{batch.id}_{name}.jsonl"
                file = await self.files.add(key.name, filename, "batch_output", path, expires_at)
                setattr(batch, f"{name}_file_id", file.id)
        await self._end(batch, ended.status, cost)

    async def _told(self, result: BatchResult, request: BatchRequest | None, terms: FeeTerms) -> tuple[Json, int]:
        """The line of a result in OpenAI's form, and what it cost."""
        line: Json = {"id": result.id}
        line["custom_id"] = None if request is None else request.custom_id
        if result.result is None or request is None:
            code, message = ("no_result", "") if result.error is None else (result.error.code, result.error.message)
            paid = await self._cost_of(result, terms)
            error: Json = {"code": OPENAI_CODES.get(code, code), "message": message}
            told = {"job_id": result.job_id, "cost": str(paid), "code": code}
            return line | {"response": None, "error": error, "svc": told}, paid
        job = result.result.job
        paid = cost_in_all(job, terms)
        created, provider = int(self.trade.clock()), job.svc.provider_id
        bought = Bought(job.id, provider, paid, paid, terms, created, result.result.output, result.result.usage)
        try:
            body = answer_of(request.wanted, bought)
        except Problem as problem:
            error = {"code": problem.code, "message": problem.message}
            return line | {"response": None, "error": error, "svc": bought.told()}, paid
        response = {"status_code": 200, "request_id": job.id, "body": body}
        return line | {"response": response, "error": None}, paid

    async def _cost_of(self, result: BatchResult, terms: FeeTerms) -> int:
        """Of a line that is paid although its result could not be read."""
        if not result.settled or result.job_id is None:
            return 0
        try:
            return cost_in_all(await self.trade.client.jobs.get(result.job_id), terms)
        except SvcError:
            return 0

    async def _fail(self, batch: StoredBatch, errors: list[Json]) -> None:
        batch.errors = errors
        posted = batch.market_id is not None
        await self._end(batch, "failed", None if posted else 0)

    async def _end(self, batch: StoredBatch, status: str, cost: int | None) -> None:
        """Store how the batch ended. `cost` is None if it is not known: then the authorised amount still counts."""
        batch.status = status
        self._mark(batch, status)
        if cost is not None:
            batch.cost = str(cost)
            self.trade.budgets.settle(batch.id, cost, self.trade.clock())

        async def write() -> None:
            if cost is not None:
                await self.trade.ledger.end_job(batch.id, "done" if cost else "unpaid", cost)
            await self.trade.ledger.end_purchase(batch.id, "done" if cost else "failed")
            await self._save(batch)
            await self._inputs.release(batch.id)

        await self.trade.persist(write)

    def _count(self, batch: StoredBatch, seen: Batch) -> None:
        counts = seen.request_counts
        batch.counts = {"total": counts.total, "completed": counts.completed, "failed": counts.failed}

    def _mark(self, batch: StoredBatch, moment: str) -> None:
        batch.times = {**batch.times, moment: batch.times.get(moment, int(self.trade.clock()))}

    async def _save(self, batch: StoredBatch) -> None:
        body = msgspec.json.encode(batch).decode()
        await self.trade.ledger.put(BATCH, batch.id, batch.created_at, batch.key, body)
