"""Plan, create, follow and read batches. A batch is a file with many orders."""

import io
import secrets
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import attrs

from common.quotes import FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.batches.offers import LineOffer
from svc.batches.preparation import OnPrepared, Preparation, PreparedBatch, RawLines
from svc.batches.results import BatchResult, BatchResults
from svc.core.bundles import LINES_METADATA_KEY, sizes_metadata
from svc.core.windows import DEFAULT_WINDOW, completion_window
from svc.error_conversion import raises_svc_errors
from svc.errors import (
    ApiError,
    BatchFailed,
    ConnectionFailed,
    OrderRefused,
    OutcomeUnknown,
    ResultUnreadable,
    WaitTimedOut,
)
from svc.files import Files
from svc.records import Batch, ModelPlan, Record
from svc.wire.events import ChangeListener, open_change_listener

BatchInput = Path | RawLines
OnBatchRead = Callable[[Batch], object]

POLL_INTERVAL_S: Final = 60.0
# Longest completion window. While the window of a batch is unknown, `wait` stops after this time.
_MAX_WINDOW_S: Final = 86_400.0
_MAX_METADATA_PAIRS: Final = 16
_MAX_METADATA_KEY_LENGTH: Final = 64
_MAX_METADATA_VALUE_LENGTH: Final = 512


class BatchPage(Record, frozen=True):
    """Page of batches, newest first. If `has_more` is True, pass `last_id` as `after` to read the next page."""

    data: tuple[Batch, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


@raises_svc_errors
@attrs.frozen
class Batches:
    """Prepares, creates, follows and reads batches."""

    account: Account
    files: Files
    preparation: Preparation
    result_files: BatchResults

    async def plan(
        self,
        lines: BatchInput,
        *,
        window: str = DEFAULT_WINDOW,
        offer: LineOffer | None = None,
        bundle: int | None = None,
    ) -> tuple[ModelPlan, ...]:
        """Return the providers that would get the lines without rates, and the providers' prices.

        Nothing is reserved or signed.
        """
        check_bundle(bundle)
        return await self.preparation.plan(await _read_raw_lines(lines), completion_window(window), offer, bundle)

    async def prepare(
        self,
        lines: BatchInput,
        *,
        window: str = DEFAULT_WINDOW,
        providers: Sequence[int] = (),
        offer: LineOffer | None = None,
        bundle: int | None = None,
        max_amount: int | None = None,
        max_line_amount: int | None = None,
        progress: OnPrepared | None = None,
    ) -> PreparedBatch:
        """Plan, price, seal and sign all lines. Nothing is posted.

        `lines`: a JSONL file, or lines as text or objects. Lines without rates go to the providers in the network's
        plan. With `offer`, they are offered at the offer's rates (`LineOffer(Rates(in, out))`) or at current prices
        (`LineOffer()`). Lines with rates go to `providers` in turn, or are open to any provider.

        Consecutive lines of a model share a job if the job's provider accepts bundles. `bundle` is the maximum number
        of lines in a job (1: a job for each line; default: limited by size, units and the provider's speed).

        `max_amount` limits the total (default: the client's `max_batch_amount`, or ten tokens). `max_line_amount`
        limits each line (default: the client's `max_amount`, or one token).

        `progress` is called with the number of prepared lines.
        """
        check_bundle(bundle)
        return await self.preparation.prepare(
            await _read_raw_lines(lines),
            completion_window(window),
            providers,
            offer=offer,
            bundle=bundle,
            max_amount=max_amount,
            max_line_amount=max_line_amount,
            progress=progress,
        )

    async def price(
        self,
        lines: BatchInput,
        *,
        window: str = DEFAULT_WINDOW,
        providers: Sequence[int] = (),
        offer: LineOffer | None = None,
        bundle: int | None = None,
        max_amount: int | None = None,
        max_line_amount: int | None = None,
    ) -> int:
        """Return the amount that `prepare` would authorise for these lines now. Nothing is posted.

        The wallet signs only the quote of the first line. `prepare` documents the options.
        """
        check_bundle(bundle)
        return await self.preparation.price(
            await _read_raw_lines(lines),
            completion_window(window),
            providers,
            offer=offer,
            bundle=bundle,
            max_amount=max_amount,
            max_line_amount=max_line_amount,
        )

    async def create(self, prepared: PreparedBatch, *, metadata: Mapping[str, str] | None = None) -> Batch:
        """Upload the file and start the batch.

        `metadata` is stored unencrypted. For a bundled batch, the client adds the number of lines of each job.
        """
        stored_metadata = _metadata_with_sizes(prepared, metadata)
        file = await self.files.upload(prepared.content, "batch", filename="batch.jsonl")
        body = {
            "input_file_id": file.id,
            "endpoint": prepared.endpoint,
            "completion_window": prepared.completion_window,
            "metadata": stored_metadata,
        }
        # With this idempotency key, a repeated request returns the batch that the first request created.
        key = secrets.token_hex(16)
        transport = self.account.transport
        attempt = 0
        while True:
            try:
                return await self.account.authorised(
                    lambda headers: transport.post(
                        "/v1/batches", Batch, body, retry=False, headers={**headers, "idempotency-key": key}
                    )
                )
            except ConnectionFailed as error:
                found = await self._find_by_file(file.id)
                if found is not None:
                    return found
                if not error.retryable or attempt == transport.retries.max_retries:
                    raise _outcome_unknown_error(file.id, error) from None
            await transport.sleep(transport.retries.pause(attempt))
            attempt += 1

    async def get(self, batch_id: str) -> Batch:
        return await self.account.authorised(
            lambda headers: self.account.transport.get(f"/v1/batches/{batch_id}", Batch, headers=headers)
        )

    async def list(self, *, limit: int = 20, after: str | None = None) -> BatchPage:
        query = {"limit": limit, "after": after}
        return await self.account.authorised(
            lambda headers: self.account.transport.get("/v1/batches", BatchPage, query, headers)
        )

    async def cancel(self, batch_id: str) -> Batch:
        """Stop posting lines. Lines that are already on the chain continue."""
        return await self.account.authorised(
            lambda headers: self.account.transport.post(
                f"/v1/batches/{batch_id}/cancel", Batch, {}, retry=True, headers=headers
            )
        )

    async def wait(
        self,
        batch_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the wait may be repeated
        every: float = POLL_INTERVAL_S,
        progress: OnBatchRead | None = None,
    ) -> Batch:
        """Wait until a batch has ended, and return the batch.

        Reads the batch at intervals and when the coordinator reports a change. Without `timeout`, waits for the rest of
        the batch's window. `progress` is called with the batch after each read. Raises WaitTimedOut.
        """
        path = f"/v1/batches/{batch_id}/events"
        async with open_change_listener(self.account.transport, path, self.account.authorised) as changes:
            return await self._poll_until_ended(batch_id, changes, timeout, every, progress)

    async def _poll_until_ended(
        self,
        batch_id: str,
        changes: ChangeListener,
        timeout_seconds: float | None,
        every: float,
        progress: OnBatchRead | None,
    ) -> Batch:
        started = anyio.current_time()
        max_seconds = timeout_seconds
        while True:
            batch = await self._get_if_reachable(batch_id)
            if batch is not None:
                if progress is not None:
                    progress(batch)
                if batch.ended:
                    return batch
                changes.listen()
                if max_seconds is None:  # add one interval, because the end is recorded shortly after the window
                    max_seconds = anyio.current_time() - started + max(0.0, self._remaining_window_s(batch)) + every
            limit = _MAX_WINDOW_S if max_seconds is None else max_seconds
            remaining = started + limit - anyio.current_time()
            if remaining <= 0:
                raise WaitTimedOut(f"batch {batch_id}", limit)
            await changes.pause(min(every, remaining), min(every, remaining))

    async def results(
        self,
        batch: Batch | str,
        *,
        custom_ids: Mapping[int, str] | None = None,
        fee_terms: FeeTerms | None = None,
    ) -> AsyncGenerator[BatchResult, None]:
        """Yield the result of every line: first the lines of settled jobs in file order, then the lines of failed jobs.

        Pass `custom_ids` and `fees` of the prepared batch as `custom_ids` and `fee_terms`. Raises BatchFailed if the
        input was rejected, and ResultUnreadable (`no_result`) while the batch is running.
        """
        ended = batch if isinstance(batch, Batch) else await self.get(batch)
        if ended.status == "failed":
            raise _batch_failed_error(ended)
        if not ended.ended:
            message = f"batch {ended.id} is {ended.status} and has no results yet"
            raise ResultUnreadable(message, code="no_result")
        async for result in self.result_files.read(ended, custom_ids or {}, fee_terms):
            yield result

    async def _get_if_reachable(self, batch_id: str) -> Batch | None:
        try:
            return await self.get(batch_id)
        except (ApiError, ConnectionFailed) as error:
            if not (error.retryable or isinstance(error, ConnectionFailed)):
                raise
            return None  # keep waiting while the coordinator is unreachable

    async def _find_by_file(self, file_id: str) -> Batch | None:
        try:
            page = await self.list()
        except (ApiError, ConnectionFailed) as error:
            raise _outcome_unknown_error(file_id, error) from None
        return next((batch for batch in page.data if batch.input_file_id == file_id), None)

    def _remaining_window_s(self, batch: Batch) -> float:
        return min(batch.expires_at - self.account.transport.clock.now(), _MAX_WINDOW_S)


def _outcome_unknown_error(file_id: str, error: ApiError | ConnectionFailed) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"unknown whether the batch with input file {file_id} was created ({error.message}):"
        " check the list of batches before you order again"
    )


def check_bundle(bundle: int | None) -> None:
    if bundle is not None and bundle < 1:
        raise OrderRefused("bundle must be at least 1", param="bundle")


def _metadata_with_sizes(prepared: PreparedBatch, metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the caller's metadata, with the number of lines of each job added. Raises OrderRefused above a limit."""
    check_metadata(metadata)
    pairs = dict(metadata or {})
    try:
        return pairs | sizes_metadata(prepared.sizes, _MAX_METADATA_PAIRS - len(pairs))
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    pairs = dict(metadata or {})
    if len(pairs) > _MAX_METADATA_PAIRS:
        raise OrderRefused(f"metadata must have at most {_MAX_METADATA_PAIRS} pairs", param="metadata")
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise OrderRefused("metadata keys and values must be strings", param="metadata")
        if key.startswith(LINES_METADATA_KEY):
            raise OrderRefused(f"metadata keys must not begin with {LINES_METADATA_KEY}", param="metadata")
        if len(key) > _MAX_METADATA_KEY_LENGTH or len(value) > _MAX_METADATA_VALUE_LENGTH:
            keys, values = f"at most {_MAX_METADATA_KEY_LENGTH}", f"at most {_MAX_METADATA_VALUE_LENGTH}"
            message = f"metadata keys must have {keys} characters, and metadata values {values}"
            raise OrderRefused(message, param=f"metadata.{key[:_MAX_METADATA_KEY_LENGTH]}")


async def _read_raw_lines(lines: BatchInput) -> RawLines:
    if not isinstance(lines, Path):
        return lines
    return io.BytesIO((await anyio.Path(lines).read_bytes()).removeprefix(BOM_UTF8))


def _batch_failed_error(batch: Batch) -> BatchFailed:
    entries = batch.errors.get("data") if isinstance(batch.errors, dict) else None
    first = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    code = first.get("code")
    return BatchFailed(batch.id, str(first.get("message", "no reason given")), code if isinstance(code, str) else None)
