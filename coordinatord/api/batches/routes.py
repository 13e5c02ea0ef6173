"""Routes of batches: create, list, read, cancel. A batch is visible only to its owner."""

from functools import partial
from typing import Final

import attrs

from common.api import limits
from common.api.batches import Batch, BatchAsOf, BatchList, PlanShape
from common.api.fields import QueryUint, Text, VisibleAscii, object_example
from common.api.shapes import Digits
from common.api.worked_order import BATCH_ID
from coordinatord.api.batches import answers
from coordinatord.api.batches.batches import BatchAtSnapshot, BatchBody, BatchService, read_batch
from coordinatord.api.batches.events import BatchEvents
from coordinatord.api.batches.plan import BatchPlanner, PlanBody
from coordinatord.api.events.routes import STREAM_HEADERS, events_reply
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX_REPLIES, Body, Parameter, Reply, Request, Route, malformed_replies
from coordinatord.http.streaming import StreamedResponse

_ID_TEXT: Final = Text(limits.MAX_HEADER_VALUE_BYTES)  # an id may be any text; an unknown id is answered with 404
_IDEMPOTENCY_KEY: Final = "idempotency-key"
_NEW_EXAMPLE: Final = {
    "status": "validating",
    "in_progress_at": None,
    "finalizing_at": None,
    "completed_at": None,
    "output_file_id": None,
    "request_counts": {"completed": 0, "failed": 0, "total": 0},
}
_CANCELLING_EXAMPLE: Final = {**_NEW_EXAMPLE, "status": "cancelling", "cancelling_at": 1800000002}


def _examples() -> dict[str, object]:
    return {"batch": object_example(BatchBody, "output_expires_after"), "plan": object_example(PlanBody)}


@attrs.frozen(slots=True)
class BatchRoutes:
    batches: BatchService
    planner: BatchPlanner
    events: BatchEvents

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/batches",
                id="createBatch",
                tag="Batches",
                about="Post the lines of a file as jobs; without a file, return a plan",
                details=(
                    "With `input_file_id`, creates a batch from the lines of that file. Send an `idempotency-key`, so"
                    " that a repeated request returns the same batch. Without `input_file_id`, answers 402 with a plan:"
                    " the providers that could take the lines now."
                ),
                handler=self.create,
                headers={
                    _IDEMPOTENCY_KEY: Parameter(
                        VisibleAscii(255),
                        "key of this request: a request with the same key and body returns the same batch",
                    )
                },
                body=Body.any_of([BatchBody, PlanBody], read_batch, _examples),
                session=True,
                replies=(
                    Reply(200, shape=Batch, about="The batch", example=_NEW_EXAMPLE),
                    Reply(402, shape=PlanShape[Digits], about="The plan. Not an error"),
                    *malformed_replies(
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
                details="For the next page, send `last_id` as `after` while `has_more` is true.",
                handler=self.list_batches,
                query={
                    "limit": Parameter(
                        QueryUint(32, 1, limits.MAX_BATCH_PAGE_ROWS),
                        f"maximum number of batches, 1 to {limits.MAX_BATCH_PAGE_ROWS}"
                        f" (default {limits.DEFAULT_BATCH_PAGE_ROWS})",
                    ),
                    "after": Parameter(_ID_TEXT, "id of a batch: the page starts after this batch"),
                },
                session=True,
                replies=(
                    Reply(200, shape=BatchList, about="A page of batches"),
                    *malformed_replies(),
                    Reply(401, "invalid_session"),
                    *INDEX_REPLIES,
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
                    "`output_file_id` and `error_file_id` are set when the batch ends. The output file has a line `{id,"
                    " custom_id: null, response, error: null, svc}` for each settled job. The error file has a line"
                    " `{id, custom_id: null, response: null, error: {code, message}, svc}` for each other line."
                ),
                handler=self.read_batch,
                segments={"id": Parameter(_ID_TEXT, "id of the batch", example=BATCH_ID)},
                session=True,
                replies=(
                    Reply(200, shape=BatchAsOf, about="The batch"),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    *INDEX_REPLIES,
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
                    "Each message is named `batch`, and its `data` is the batch as GET /v1/batches/{id} returns it. A"
                    " message is sent at the start and after each change, at most once a second. A comment is sent"
                    " about every 20 seconds."
                ),
                handler=self.stream_events,
                segments={"id": Parameter(_ID_TEXT, "id of the batch", example=BATCH_ID)},
                session=True,
                replies=(
                    events_reply("The batch, at the start and after each change", BatchAsOf),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    Reply(429, "busy"),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
            Route(
                method="POST",
                path="/v1/batches/{id}/cancel",
                id="cancelBatch",
                tag="Batches",
                about="Cancel a batch, so that no more of its lines are posted",
                details=(
                    "Lines that are not posted yet end with the error `cancelled`. Jobs on the chain are not changed."
                ),
                handler=self.cancel,
                segments={"id": Parameter(_ID_TEXT, "id of the batch", example=BATCH_ID)},
                session=True,
                replies=(
                    Reply(200, shape=BatchAsOf, about="The batch", example=_CANCELLING_EXAMPLE),
                    *malformed_replies("batch_not_cancellable"),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
        ]

    async def create(self, request: Request) -> Response:
        body: BatchBody | PlanBody = request.body
        if isinstance(body, PlanBody):
            # The body of this 402 is a plan in place of an error.
            return responses.not_retryable(402, await self.planner.plan_models(body))
        created = await self.batches.create(request.owner, body, request.headers.get(_IDEMPOTENCY_KEY))
        return responses.ok(answers.batch_shape(created))

    async def list_batches(self, request: Request) -> Response:
        query = request.query
        limit = query.get("limit", limits.DEFAULT_BATCH_PAGE_ROWS)
        snapshot, batches, has_more = await self.batches.list_page(request.owner, query.get("after"), limit)
        return responses.ok(answers.batch_list_shape(batches, snapshot.block_number, has_more=has_more))

    async def read_batch(self, request: Request) -> Response:
        return _batch_response(await self.batches.find(request.owner, request.path["id"]))

    async def stream_events(self, request: Request) -> Response | StreamedResponse:
        owner, batch_id = request.owner, request.path["id"]
        read = partial(self.batches.find, owner, batch_id)
        if await read() is None:
            return responses.not_found(NoSuchObject("batch"))
        opened = partial(self.events.open_stream, owner, batch_id, request.caller, read)
        return StreamedResponse(200, STREAM_HEADERS, None, opened)

    async def cancel(self, request: Request) -> Response:
        return _batch_response(await self.batches.cancel(request.owner, request.path["id"]))


def _batch_response(found: BatchAtSnapshot | None) -> Response:
    if found is None:
        return responses.not_found(NoSuchObject("batch"))
    snapshot, batch = found
    return responses.ok(answers.batch_shape_as_of(batch, snapshot.block_number))
