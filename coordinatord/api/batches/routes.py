"""Routes of batches: create, list, read, cancel. A batch is visible to its owner alone."""

import json
from functools import partial
from typing import Final, assert_never

import attrs
import msgspec

from common.api import limits
from common.api.batches import (
    Batch,
    BatchAsOf,
    BatchErrors,
    BatchList,
    BatchTerms,
    PlannedModelShape,
    PlannedShare,
    PlanShape,
    RequestCounts,
)
from common.api.fields import Decimal, Text, Visible, object_example
from common.api.shapes import Digits
from common.api.worked_order import BATCH_ID
from common.scalars import hex_of
from coordinatord.api.batches import batches
from coordinatord.api.batches.batches import BatchBody, BatchService, FoundBatch, read_batch, status_of
from coordinatord.api.batches.batches_sql import BatchRow
from coordinatord.api.batches.events import BatchEvents
from coordinatord.api.batches.plan import ModelAllocation, PlanBody, Plans
from coordinatord.api.events.routes import STREAM_HEADERS, events_reply
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX, Body, Parameter, Reply, Request, Route, malformed
from coordinatord.http.streaming import StreamedResponse


def batch(row: BatchRow) -> Batch:
    counts = row.counts
    return Batch(
        id=row.id,
        endpoint=row.endpoint,
        errors=msgspec.json.decode(row.errors, type=BatchErrors) if row.errors is not None else None,
        input_file_id=row.input_file_id,
        completion_window=row.completion_window,
        status=status_of(row),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=row.created_at,
        in_progress_at=row.in_progress_at,
        expires_at=row.expires_at,
        finalizing_at=row.finalizing_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        expired_at=row.expired_at,
        cancelling_at=row.cancelling_at,
        cancelled_at=row.cancelled_at,
        request_counts=RequestCounts(counts.completed, counts.failed, counts.total),
        metadata=json.loads(row.metadata),
        svc=BatchTerms(row.completion_window),
    )


def batch_as_of(row: BatchRow, block_number: int) -> BatchAsOf:
    plain = batch(row)
    members = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return BatchAsOf(**members, as_of_block=str(block_number))


def batch_list(rows: list[BatchRow], block_number: int, *, has_more: bool) -> BatchList:
    return BatchList(
        object="list",
        data=[batch(row) for row in rows],
        first_id=rows[0].id if rows else None,
        last_id=rows[-1].id if rows else None,
        has_more=has_more,
        as_of_block=str(block_number),
    )


def plan(models: list[ModelAllocation]) -> PlanShape[Digits]:
    return PlanShape(tuple(_planned_model(model) for model in models))


def _planned_model(model: ModelAllocation) -> PlannedModelShape[Digits]:
    return PlannedModelShape(
        model_id=str(model.model_id),
        lines=str(model.lines),
        allocation=tuple(
            PlannedShare(
                provider_id=str(share.taker.provider_id),
                box_key=hex_of(share.taker.box_key),
                rate_in=share.taker.rate_in,
                rate_out=share.taker.rate_out,
                lines=str(share.lines),
            )
            for share in model.allocation
        ),
    )


# Statuses and bodies of the outcomes of batches.


def planned(plans: list[ModelAllocation]) -> Response:
    """What a batch would meet: not an error, and nothing that a repetition would change."""
    return responses.final(402, plan(plans))


def batch_cancelled(outcome: batches.BatchCancelOutcome) -> Response:
    match outcome:
        case batches.FoundBatch():
            return responses.ok(batch_as_of(outcome.batch, outcome.snapshot.block_number))
        case batches.NotCancellable():
            message = "the batch has ended, or every line of it has"
            return responses.error(400, "invalid_request_error", message, code="batch_not_cancellable")
        case None:
            return responses.not_found(NoSuchObject("batch"))
        case _:
            assert_never(outcome)


_ID: Final = Text(limits.HEAD_VALUE)  # whatever it is, it names a batch or none
_KEY: Final = "idempotency-key"
_NEW: Final = {
    "status": "validating",
    "in_progress_at": None,
    "finalizing_at": None,
    "completed_at": None,
    "output_file_id": None,
    "request_counts": {"completed": 0, "failed": 0, "total": 0},
}
_CANCELLING: Final = {**_NEW, "status": "cancelling", "cancelling_at": 1800000002}


def _examples() -> dict[str, object]:
    return {"batch": object_example(BatchBody, "output_expires_after"), "plan": object_example(PlanBody)}


@attrs.frozen(slots=True)
class BatchRoutes:
    batches: BatchService
    plans: Plans
    followed: BatchEvents

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/batches",
                id="createBatch",
                tag="Batches",
                about="Post every line of a file as a job, and follow them together; without a file, plan it",
                details=(
                    "With `input_file_id`: a batch of the lines of that file; send `idempotency-key` the first time"
                    " too, so that a lost answer can be asked for again. Without it: a plan, answered with 402, of who"
                    " could take so many lines now."
                ),
                handler=self.create,
                headers={
                    _KEY: Parameter(
                        Visible(255), "name of this request: the same key and body answer with the same batch"
                    )
                },
                body=Body.any_of([BatchBody, PlanBody], read_batch, _examples),
                session=True,
                replies=(
                    Reply(200, shape=Batch, about="The batch", example=_NEW),
                    Reply(402, shape=PlanShape[Digits], about="The plan: not an error"),
                    *malformed(
                        "invalid_endpoint", "invalid_completion_window", "invalid_input_file", "idempotency_key_reused"
                    ),
                    Reply(401, "invalid_session"),
                ),
            ),
            Route(
                method="GET",
                path="/v1/batches",
                id="listBatches",
                tag="Batches",
                about="List this address's batches, newest first",
                details="Pages by cursor: send `last_id` as `after` while `has_more` is true.",
                handler=self.page,
                query={
                    "limit": Parameter(
                        Decimal(32, 1, limits.LARGEST_BATCH_PAGE),
                        f"at most so many, 1 to {limits.LARGEST_BATCH_PAGE} (default {limits.DEFAULT_BATCH_PAGE})",
                    ),
                    "after": Parameter(_ID, "id of a batch: those behind it"),
                },
                session=True,
                replies=(
                    Reply(200, shape=BatchList, about="A page of batches"),
                    *malformed(),
                    Reply(401, "invalid_session"),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/batches/{id}",
                id="getBatch",
                tag="Batches",
                about="Read one batch",
                details=(
                    "`output_file_id` and `error_file_id` are set at the end. Lines of the output are `{id, custom_id:"
                    " null, response, error: null, svc}`, one for each settled job; lines of errors are `{id,"
                    " custom_id: null, response: null, error: {code, message}, svc}`, one for each other line."
                ),
                handler=self.one,
                segments={"id": Parameter(_ID, "id of the batch", example=BATCH_ID)},
                session=True,
                replies=(
                    Reply(200, shape=BatchAsOf, about="The batch"),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/batches/{id}/events",
                id="followBatch",
                tag="Batches",
                about="Follow one batch, as server-sent events",
                details=(
                    "Each message is named `batch`; its `data` is the batch as GET gives it, sent at once and whenever"
                    " it has changed, at most once a second. A comment comes every 20 seconds or so."
                ),
                handler=self.events,
                segments={"id": Parameter(_ID, "id of the batch", example=BATCH_ID)},
                session=True,
                replies=(
                    events_reply("The batch, again and again", BatchAsOf),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    Reply(429, "busy"),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="POST",
                path="/v1/batches/{id}/cancel",
                id="cancelBatch",
                tag="Batches",
                about="Post no more lines of a batch",
                details="Lines that are not posted yet will not be; jobs on the chain stay as they are.",
                handler=self.cancel,
                segments={"id": Parameter(_ID, "id of the batch", example=BATCH_ID)},
                session=True,
                replies=(
                    Reply(200, shape=BatchAsOf, about="The batch", example=_CANCELLING),
                    *malformed("batch_not_cancellable"),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
            ),
        ]

    async def create(self, request: Request) -> Response:
        body: BatchBody | PlanBody = request.body
        if isinstance(body, PlanBody):
            return planned(await self.plans.plan(body))
        created = await self.batches.create(request.owner, body, request.headers.get(_KEY))
        return responses.ok(batch(created))

    async def page(self, request: Request) -> Response:
        query = request.query
        page = await self.batches.page(request.owner, query.get("after"), query.get("limit", limits.DEFAULT_BATCH_PAGE))
        listed = batch_list(page.batches, page.snapshot.block_number, has_more=page.has_more)
        return responses.ok(listed)

    async def one(self, request: Request) -> Response:
        found = await self.batches.find(request.owner, request.path["id"])
        if found is None:
            return responses.not_found(NoSuchObject("batch"))
        return responses.ok(batch_as_of(found.batch, found.snapshot.block_number))

    async def events(self, request: Request) -> Response | StreamedResponse:
        owner, batch_id = request.owner, request.path["id"]
        read = partial(self.batches.find, owner, batch_id)
        if await read() is None:
            return responses.not_found(NoSuchObject("batch"))
        opened = partial(self.followed.following, owner, batch_id, request.caller, read, _data)
        return StreamedResponse(200, STREAM_HEADERS, None, opened)

    async def cancel(self, request: Request) -> Response:
        return batch_cancelled(await self.batches.cancel(request.owner, request.path["id"]))


def _data(found: FoundBatch) -> bytes:
    return msgspec.json.encode(batch_as_of(found.batch, found.snapshot.block_number))
