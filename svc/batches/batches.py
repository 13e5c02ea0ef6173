"""Batches: many orders in one file, followed as one."""

import io
import secrets
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import attrs

from svc.account import Account
from svc.batches.offers import LineOffer
from svc.batches.preparation import Preparation, PreparedBatch, Progress, Texts
from svc.batches.results import BatchResult, BatchResults
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
from svc.wire.events import ToldChanges, changes_of

Lines = Path | Texts
BatchSeen = Callable[[Batch], object]

POLL_SECONDS: Final = 60.0
_LONGEST_WINDOW: Final = 86_400.0  # of a batch that could not be looked at yet
_MOST_PAIRS: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512


class BatchPage(Record, frozen=True):
    """Newest first; pass `last_id` as `after` while `has_more`."""

    data: tuple[Batch, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


@raises_svc_errors
@attrs.frozen
class Batches:
    account: Account
    files: Files
    preparation: Preparation
    opened: BatchResults

    async def plan(
        self, lines: Lines, *, window: str = DEFAULT_WINDOW, offer: LineOffer | None = None
    ) -> tuple[ModelPlan, ...]:
        """Who would take the lines that carry no rates, and at what price. Nothing is reserved or signed."""
        return await self.preparation.plan(await _texts(lines), completion_window(window), offer)

    async def prepare(
        self,
        lines: Lines,
        *,
        window: str = DEFAULT_WINDOW,
        providers: Sequence[int] = (),
        offer: LineOffer | None = None,
        max_amount: int | None = None,
        max_line_amount: int | None = None,
        progress: Progress | None = None,
    ) -> PreparedBatch:
        """Plan, seal, sign and price every line; nothing is posted.

        `lines`: a JSONL file, or its lines as text or as objects. Lines without rates go to whom the network's plan
        names, or with an `offer` are offered at its rates (`LineOffer(Rates(in, out))`, present prices with
        `LineOffer()`); lines with rates go to `providers` in turn or, with none, to whoever claims them. `max_amount`
        bounds what all of them come to (else the client's `max_batch_amount`, or ten tokens), `max_line_amount` each of
        them (else the client's `max_amount`, or one token). `progress` is told how many lines are done.
        """
        return await self.preparation.prepare(
            await _texts(lines),
            completion_window(window),
            providers,
            offer=offer,
            max_amount=max_amount,
            max_line_amount=max_line_amount,
            progress=progress,
        )

    async def create(self, prepared: PreparedBatch, *, metadata: Mapping[str, str] | None = None) -> Batch:
        """Upload the file and start the batch. `metadata` is stored in the clear."""
        check_metadata(metadata)
        file = await self.files.upload(prepared.content, "batch", filename="batch.jsonl")
        body = {
            "input_file_id": file.id,
            "endpoint": prepared.endpoint,
            "completion_window": prepared.completion_window,
            "metadata": dict(metadata or {}),
        }
        # A coordinator that knows the header answers a repetition with the batch that it made.
        key = secrets.token_hex(16)
        transport = self.account.transport
        attempt = 0
        while True:
            try:
                return await self.account.authorised(
                    lambda headers: transport.post(
                        "/v1/batches", Batch, body, safe=False, headers={**headers, "idempotency-key": key}
                    )
                )
            except ConnectionFailed as failed:
                found = await self._created_from(file.id)
                if found is not None:
                    return found
                if not failed.retryable or attempt == transport.retries.most:
                    raise _unknown(file.id, failed) from None
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
        """Lines that are not posted yet will not be; those on the chain go on."""
        return await self.account.authorised(
            lambda headers: self.account.transport.post(
                f"/v1/batches/{batch_id}/cancel", Batch, {}, safe=True, headers=headers
            )
        )

    async def wait(
        self,
        batch_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the wait goes on for whoever calls again
        every: float = POLL_SECONDS,
        progress: BatchSeen | None = None,
    ) -> Batch:
        """The batch once it has ended, looked at about once a minute and whenever the coordinator tells that it has
        changed, for the rest of its window unless told otherwise.

        `progress` is shown the batch at every look. Raises WaitTimedOut.
        """
        path = f"/v1/batches/{batch_id}/events"
        async with changes_of(self.account.transport, path, self.account.authorised) as changes:
            return await self._until_ended(batch_id, changes, timeout, every, progress)

    async def _until_ended(
        self, batch_id: str, changes: ToldChanges, patience: float | None, every: float, progress: BatchSeen | None
    ) -> Batch:
        began = anyio.current_time()
        most = patience
        while True:
            batch = await self._look(batch_id)
            if batch is not None:
                if progress is not None:
                    progress(batch)
                if batch.ended:
                    return batch
                changes.listen()
                if most is None:  # one look more than the window: the end is written a little after it
                    most = anyio.current_time() - began + max(0.0, self._window(batch)) + every
            so_far = _LONGEST_WINDOW if most is None else most
            left = began + so_far - anyio.current_time()
            if left <= 0:
                raise WaitTimedOut(f"batch {batch_id}", so_far)
            await changes.pause(min(every, left), min(every, left))

    async def results(
        self, batch: Batch | str, *, custom_ids: Mapping[str, str] | None = None
    ) -> AsyncGenerator[BatchResult, None]:
        """Every line's end: the settled ones in file order, opened, then the failed ones.

        `custom_ids` are those of the prepared batch, by job id. Raises BatchFailed when the input was refused as a
        whole, ResultUnreadable (`no_result`) while it goes on.
        """
        ended = batch if isinstance(batch, Batch) else await self.get(batch)
        if ended.status == "failed":
            raise _refused(ended)
        if not ended.ended:
            message = f"batch {ended.id} is {ended.status}: it has no results yet"
            raise ResultUnreadable(message, code="no_result")
        async for result in self.opened.read(ended, custom_ids or {}):
            yield result

    async def _look(self, batch_id: str) -> Batch | None:
        try:
            return await self.get(batch_id)
        except (ApiError, ConnectionFailed) as failed:
            if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                raise
            return None  # a coordinator that is away for a while is what waiting is for

    async def _created_from(self, file_id: str) -> Batch | None:
        try:
            page = await self.list()
        except (ApiError, ConnectionFailed) as failed:
            raise _unknown(file_id, failed) from None
        return next((batch for batch in page.data if batch.input_file_id == file_id), None)

    def _window(self, batch: Batch) -> float:
        return min(batch.expires_at - self.account.transport.clock.now(), _LONGEST_WINDOW)


def _unknown(file_id: str, failed: ApiError | ConnectionFailed) -> OutcomeUnknown:
    return OutcomeUnknown(f"no word of whether the batch of {file_id} was made ({failed.message})")


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    pairs = dict(metadata or {})
    if len(pairs) > _MOST_PAIRS:
        raise OrderRefused(f"metadata has at most {_MOST_PAIRS} pairs", param="metadata")
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise OrderRefused("metadata holds pairs of strings", param="metadata")
        if len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            message = f"metadata keys have at most {_LONGEST_KEY} characters and values {_LONGEST_VALUE}"
            raise OrderRefused(message, param=f"metadata.{key[:_LONGEST_KEY]}")


async def _texts(lines: Lines) -> Texts:
    if not isinstance(lines, Path):
        return lines
    return io.BytesIO((await anyio.Path(lines).read_bytes()).removeprefix(BOM_UTF8))


def _refused(batch: Batch) -> BatchFailed:
    said = batch.errors.get("data") if isinstance(batch.errors, dict) else None
    first = said[0] if isinstance(said, list) and said and isinstance(said[0], dict) else {}
    code = first.get("code")
    return BatchFailed(batch.id, str(first.get("message", "no reason given")), code if isinstance(code, str) else None)
