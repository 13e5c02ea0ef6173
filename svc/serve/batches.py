"""Batches of `/v1/batches`. Lines in OpenAI's form are sealed one by one and posted as one batch of the market.

    validating ── lines read ── posting ── in_progress ── finalizing ── completed, expired, cancelled
         └─► failed: `errors` lists the invalid lines        └─► results in OpenAI's form, with custom_id

A batch continues without its client and after a restart. The market's batch has the id of the local batch as metadata.
If the reply to a post is lost, the batch is found by this id instead of being posted twice.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypedDict

import anyio
import attrs
import msgspec
from anyio import to_thread

from common.api import limits
from common.quotes import FeeTerms
from svc.batches.offers import LineOffer
from svc.batches.preparation import PreparedBatch
from svc.batches.results import BatchResult
from svc.errors import ConnectionFailed, SvcError
from svc.records import Batch
from svc.serve.answers import build_answer
from svc.serve.attempts import PurchaseContext, may_have_been_accepted
from svc.serve.batch_files import BatchInputs, BatchResultFiles
from svc.serve.batch_lines import (
    OPENAI_ERROR_CODES,
    WINDOW_DURATIONS_S,
    BatchRequest,
    StoredBatch,
    error_json,
    read_line,
    shared_terms,
    to_market_line,
)
from svc.serve.files import LocalFiles
from svc.serve.keys import ApiKey
from svc.serve.ledger import LedgerJob, LedgerPurchase
from svc.serve.media_answers import BoughtAnswer
from svc.serve.problems import Problem, StorageFailed, convert_storage_errors, invalid_request, problem_from_error
from svc.serve.requests import AnswerRequest

JsonObject = dict[str, Any]

BATCH_KIND: Final = "batch"
BATCH_ID_METADATA_KEY: Final = "svc-serve"  # under this key, the market's batch stores the local batch's id
_POLL_INTERVAL_S: Final = 5.0
_RETRY_PAUSE_S: Final = 15.0
_MAX_REPORTED_ERRORS: Final = 100
_MAX_BATCHES_SEARCHED: Final = 1000
_MAX_LINES: Final = limits.MAX_BATCH_LINES
SEVERAL_MODELS_NAME: Final = "(several)"  # model name in the ledger for a batch with several models


class BatchTerms(TypedDict):
    """Terms with which a batch is priced and prepared."""

    window: str
    providers: tuple[int, ...]
    offer: LineOffer | None
    max_amount: int | None
    max_line_amount: int | None


@attrs.define(eq=False)
class LocalBatches:
    """Stores and runs the batches of this server."""

    context: PurchaseContext
    files: LocalFiles
    sleep: Callable[[float], Any] = anyio.sleep
    _running: dict[str, StoredBatch] = attrs.field(factory=dict)

    @property
    def _inputs(self) -> BatchInputs:
        return BatchInputs(self.files)

    async def begin(self, key: ApiKey, batch: StoredBatch) -> StoredBatch:
        """Store and start a batch. Its input is copied, because the file may be deleted while the batch runs."""
        await self._inputs.copy_input(batch.input_file_id, batch.id)
        try:
            await self._store_batch(batch)
        except StorageFailed:
            await self._inputs.delete_input(batch.id)
            raise
        self._start(batch, key)
        return batch

    async def price(self, key: ApiKey, batch: StoredBatch) -> JsonObject:
        """Return the amount of a batch that has not begun, its lines by model, and the errors of refused lines.

        The amount is null if a line is refused, because the batch would then fail.
        """
        requests, errors = await self._read_requests(batch, key)
        accepted = [request for request in requests if request is not None]
        models = Counter(request.requested.model_name for request in accepted)
        amount: int | None = None
        if not errors:
            lines = [to_market_line(request) for request in accepted]
            amount = await self.context.client.batches.price(lines, **self._batch_terms(batch, accepted))
        return {
            "amount": None if amount is None else str(amount),
            "lines": len(requests),
            "refused": len(requests) - len(accepted),
            "models": [{"name": name, "lines": count} for name, count in models.most_common()],
            "errors": errors,
        }

    async def get(self, key: str, batch_id: str) -> StoredBatch:
        if (running := self._running.get(batch_id)) is not None and running.key == key:
            return running
        body = await self.context.ledger.get_document(BATCH_KIND, batch_id, key)
        if body is None:
            raise Problem(404, f"batch {batch_id} not found", code="batch_not_found", param="batch_id")
        return msgspec.json.decode(body, type=StoredBatch)

    async def list_batches(self, key: str) -> list[StoredBatch]:
        stored = [
            msgspec.json.decode(body, type=StoredBatch)
            for body in await self.context.ledger.list_documents(BATCH_KIND, key)
        ]
        return [self._running.get(batch.id, batch) for batch in stored]

    async def cancel(self, key: str, batch_id: str) -> StoredBatch:
        """Cancel a batch. Posted lines continue; the others are not posted."""
        batch = await self.get(key, batch_id)
        if batch.ended:
            message = f"batch {batch_id} is already {batch.status} and cannot be cancelled"
            raise Problem(409, message, code="batch_not_cancellable", param="batch_id")
        if batch.market_id is not None:  # repeated while cancelling, because an earlier attempt may have failed
            await self.context.client.batches.cancel(batch.market_id)
        if not batch.cancelling:
            batch.cancelling = True
            self._record_time(batch, "cancelling")
            await self._store_batch(batch)
        return batch

    async def resume(self, find_key: Callable[[str], ApiKey | None]) -> None:
        """Resume unfinished batches, except those whose key was removed from the settings."""
        for body in await self.context.ledger.list_documents(BATCH_KIND, None):
            batch = msgspec.json.decode(body, type=StoredBatch)
            key = find_key(batch.key)
            if not batch.ended and key is not None:
                self._start(batch, key)

    def _start(self, batch: StoredBatch, key: ApiKey) -> None:
        self._running[batch.id] = batch
        self.context.start_task("batch", self._run, batch, key)

    async def _run(self, batch: StoredBatch, key: ApiKey) -> None:
        """Run a batch to its end. Never raises, because errors are recorded in the batch's `errors`.

        If the coordinator is unreachable or the disk is full, retries while `_may_continue` returns True.
        """
        try:
            while not batch.ended:
                try:
                    await self._run_steps(batch, key)
                except SvcError as error:
                    if not error.retryable or not self._may_continue(batch):
                        raise
                except StorageFailed as failed:
                    if not self._may_continue(batch):
                        raise
                    self.context.report(f"batch {batch.id} is waiting to retry: {failed.message}")
                else:
                    continue
                await self.sleep(_RETRY_PAUSE_S)
        except Problem as problem:
            await self._record_batch_failure(batch, [error_json(problem)])
        except SvcError as error:
            await self._record_batch_failure(batch, [error_json(problem_from_error(error))])
        except Exception as error:
            self.context.report(f"batch {batch.id} failed unexpectedly: {type(error).__name__}: {error}")
            await self._record_batch_failure(
                batch, [{"code": "internal_error", "message": "svc serve failed unexpectedly"}]
            )
        finally:
            self._running.pop(batch.id, None)

    def _may_continue(self, batch: StoredBatch) -> bool:
        """Return True if the batch is posted, was possibly posted, or has time left to be posted."""
        ends = batch.created_at + WINDOW_DURATIONS_S[batch.completion_window]
        posted = batch.market_id is not None or batch.status == "posting"
        return posted or self.context.clock() + _RETRY_PAUSE_S <= ends

    async def _run_steps(self, batch: StoredBatch, key: ApiKey) -> None:
        """Run the batch from its current step to its end. Raises Problem and SvcError."""
        if batch.status == "posting" and batch.market_id is None:  # an earlier post whose reply was lost
            batch.market_id = await self._find_market_batch(batch)
            if batch.market_id is None:
                batch.status = "validating"
                await self._release_reservation(batch)
        requests, errors = await self._read_requests(batch, key)
        if errors and batch.market_id is None:
            await self._record_batch_failure(batch, errors)
            return
        batch.counts["total"] = len(requests)
        if (
            batch.market_id is None
            and self.context.clock() > batch.created_at + WINDOW_DURATIONS_S[batch.completion_window]
        ):
            await self._record_batch_end(batch, "expired", 0)
            return
        if batch.market_id is None and not batch.cancelling:
            batch.market_id = await self._post_batch(batch, [request for request in requests if request is not None])
        if batch.market_id is None:
            await self._record_batch_end(batch, "cancelled", 0)
            return
        batch.status = "in_progress"
        self._record_time(batch, "in_progress")
        await self._store_batch(batch)
        if batch.cancelling:  # cancelled while it was being posted
            await self.context.client.batches.cancel(batch.market_id)
        ended = await self.context.client.batches.wait(
            batch.market_id, every=_POLL_INTERVAL_S, progress=lambda market: self._update_counts(batch, market)
        )
        await self._store_results(batch, key, ended, requests)

    async def _read_requests(
        self, batch: StoredBatch, key: ApiKey
    ) -> tuple[list[BatchRequest | None], list[JsonObject]]:
        """Return all lines, with None for an invalid line, and the errors of the first hundred invalid lines."""
        content = await self._inputs.read_input(batch.key, batch.input_file_id, batch.id)
        requests: list[BatchRequest | None] = []
        errors: list[JsonObject] = []
        custom_ids: set[str] = set()
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip():
                continue
            if len(requests) == _MAX_LINES:
                raise invalid_request(
                    f"a batch must have at most {_MAX_LINES} lines", "input_file_id", "too_many_lines"
                )
            try:
                read = await read_line(self.context.prices, batch, key, line)
                if read.custom_id in custom_ids:
                    raise invalid_request(f"custom_id {read.custom_id!r} is used by an earlier line", "custom_id")
                custom_ids.add(read.custom_id)
                requests.append(read)
            except Problem as problem:
                requests.append(None)
                if len(errors) < _MAX_REPORTED_ERRORS:
                    errors.append(error_json(problem) | {"line": number})
        if not requests and not errors:
            errors = [
                error_json(invalid_request("the file must contain at least one line", "input_file_id", "empty_file"))
            ]
        return requests, errors

    def _batch_terms(self, batch: StoredBatch, requests: list[BatchRequest]) -> BatchTerms:
        providers, offer = shared_terms(requests)
        budget = self.context.settings.budget
        return {
            "window": batch.completion_window,
            "providers": providers,
            "offer": offer,
            "max_amount": budget.per_batch,
            "max_line_amount": budget.per_request,
        }

    async def _post_batch(self, batch: StoredBatch, requests: list[BatchRequest]) -> str | None:
        """Post the batch and return its id in the market, or None if the batch was cancelled before the post.

        Raises Problem and SvcError. After an error, the batch may have been posted only if its status is `posting`.
        """
        context = self.context
        lines = [to_market_line(request) for request in requests]
        prepared = await context.client.batches.prepare(lines, **self._batch_terms(batch, requests))
        if batch.max_amount is not None and prepared.amount > int(batch.max_amount):
            message = (
                f"the batch costs up to {prepared.amount} base units, above its limit of {batch.max_amount}:"
                " the price rose since it was shown, so start the batch again"
            )
            raise Problem(429, message, type="insufficient_quota", code="insufficient_quota")
        if batch.cancelling:
            return None
        await self._reserve(batch, prepared, [request.requested for request in requests])
        batch.status, batch.amount = "posting", str(prepared.amount)
        await self._store_batch(batch)
        try:
            created = await context.client.batches.create(prepared, metadata={BATCH_ID_METADATA_KEY: batch.id})
        except SvcError as failed:
            if may_have_been_accepted(failed):  # search for the batch before posting it again
                raise ConnectionFailed(
                    f"cannot determine whether batch {batch.id} was posted: {failed.message}"
                ) from None
            batch.status = "validating"
            await self._release_reservation(batch)
            raise
        return created.id

    async def _reserve(self, batch: StoredBatch, prepared: PreparedBatch, requested: Sequence[AnswerRequest]) -> None:
        context, now = self.context, self.context.clock()
        context.budgets.reserve(batch.key, batch.id, prepared.amount, now)
        names = {request.model_name for request in requested}, {request.model.id for request in requested}
        name, model = (each.pop() if len(each) == 1 else SEVERAL_MODELS_NAME for each in names)
        row = LedgerPurchase(batch.id, now, batch.key, BATCH_KIND, name, model, batch.input_file_id, None)
        if not await context.ledger.list_jobs(batch.id):
            job = LedgerJob(batch.id, batch.id, now, 0, prepared.amount, prepared.fees)
            await context.ledger.add_purchase(row, job)
        else:  # a retry: replace the earlier amount
            await context.ledger.update_job_terms(batch.id, now, prepared.amount, prepared.fees)

    async def _release_reservation(self, batch: StoredBatch) -> None:
        self.context.budgets.settle(batch.id, 0, self.context.clock())
        await self.context.ledger.record_job_end(batch.id, "unpaid", 0)

    async def _find_market_batch(self, batch: StoredBatch) -> str | None:
        """Return the id of the market's batch that has this batch's id as metadata, or None."""
        after: str | None = None
        for _ in range(_MAX_BATCHES_SEARCHED // 100):
            page = await self.context.client.batches.list(limit=100, after=after)
            for candidate in page.data:
                if (candidate.metadata or {}).get(BATCH_ID_METADATA_KEY) == batch.id:
                    return candidate.id
            if not page.has_more or page.data[-1].created_at < batch.created_at:
                return None
            after = page.last_id
        return None

    async def _store_results(
        self, batch: StoredBatch, key: ApiKey, ended: Batch, requests: list[BatchRequest | None]
    ) -> None:
        batch.status = "finalizing"
        self._record_time(batch, "finalizing")
        await self._store_batch(batch)
        rows = await self.context.ledger.list_jobs(batch.id)
        terms = rows[0].terms if rows else FeeTerms(0, 0)
        cost, counts = 0, {True: 0, False: 0}
        with convert_storage_errors(), BatchResultFiles(self.files.folder, batch.id) as written:
            async for result in self.context.client.batches.results(ended, fee_terms=terms):
                request = requests[result.line - 1] if 0 < result.line <= len(requests) else None
                line, paid = self._result_line(result, request, terms)
                succeeded = line["error"] is None
                cost, counts[succeeded] = cost + paid, counts[succeeded] + 1
                await to_thread.run_sync(written.write_line, line, succeeded)
            batch.counts = {"total": len(requests), "completed": counts[True], "failed": counts[False]}
            expires_at = None if batch.output_seconds is None else int(self.context.clock()) + batch.output_seconds
            for name, path in written.close_files():
                if getattr(batch, f"{name}_file_id") is not None:
                    continue  # already stored before an interruption
                filename = f"{batch.id}_{name}.jsonl"
                file = await self.files.add(key.name, filename, "batch_output", path, expires_at)
                setattr(batch, f"{name}_file_id", file.id)
        await self._record_batch_end(batch, ended.status, cost)

    def _result_line(
        self, result: BatchResult, request: BatchRequest | None, terms: FeeTerms
    ) -> tuple[JsonObject, int]:
        """Return a result in OpenAI's form, and its cost."""
        line: JsonObject = {"id": result.id}
        line["custom_id"] = None if request is None else request.custom_id
        paid = 0 if result.cost is None else result.cost.total
        if result.result is None or request is None:
            code, message = ("no_result", "") if result.error is None else (result.error.code, result.error.message)
            error: JsonObject = {"code": OPENAI_ERROR_CODES.get(code, code), "message": message}
            details = {"job_id": result.job_id, "cost": str(paid), "code": code}
            return line | {"response": None, "error": error, "svc": details}, paid
        job = result.result.job
        created, provider = int(self.context.clock()), job.svc.provider_id
        bought = BoughtAnswer(job.id, provider, paid, paid, terms, created, result.result.output, result.result.usage)
        try:
            body = build_answer(request.requested, bought)
        except Problem as problem:
            error = {"code": problem.code, "message": problem.message}
            return line | {"response": None, "error": error, "svc": bought.to_json()}, paid
        response = {"status_code": 200, "request_id": job.id, "body": body}
        return line | {"response": response, "error": None}, paid

    async def _record_batch_failure(self, batch: StoredBatch, errors: list[JsonObject]) -> None:
        batch.errors = errors
        posted = batch.market_id is not None
        await self._record_batch_end(batch, "failed", None if posted else 0)

    async def _record_batch_end(self, batch: StoredBatch, status: str, cost: int | None) -> None:
        """Store how the batch ended. Without a `cost`, the authorised amount still counts against the budgets."""
        batch.status = status
        self._record_time(batch, status)
        if cost is not None:
            batch.cost = str(cost)
            self.context.budgets.settle(batch.id, cost, self.context.clock())

        async def write() -> None:
            if cost is not None:
                await self.context.ledger.record_job_end(batch.id, "done" if cost else "unpaid", cost)
            await self.context.ledger.record_purchase_end(batch.id, "done" if cost else "failed")
            await self._store_batch(batch)
            await self._inputs.delete_input(batch.id)

        await self.context.write_until_stored(write)

    def _update_counts(self, batch: StoredBatch, market_batch: Batch) -> None:
        """Estimate the number of ended lines from the market's count of ended jobs. One job may have many lines."""
        counts, lines = market_batch.request_counts, batch.counts["total"]
        ended = {
            name: count * lines // max(1, counts.total)
            for name, count in (("completed", counts.completed), ("failed", counts.failed))
        }
        batch.counts = {"total": lines, **ended}

    def _record_time(self, batch: StoredBatch, event: str) -> None:
        batch.times = {**batch.times, event: batch.times.get(event, int(self.context.clock()))}

    async def _store_batch(self, batch: StoredBatch) -> None:
        body = msgspec.json.encode(batch).decode()
        await self.context.ledger.put_document(BATCH_KIND, batch.id, batch.created_at, batch.key, body)
