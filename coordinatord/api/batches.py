"""Batches: created, listed, read, cancelled. All of them are their owner's alone."""

from typing import Final

import attrs

from coordinatord.api import answers, batch_views, plan_views
from coordinatord.api.answers import Answer
from coordinatord.api.routes import INDEX, Body, Parameter, Reply, Request, Route, malformed
from coordinatord.fields import Decimal, Text, Visible
from coordinatord.service.batches import BatchBody, Batches, read_batch
from coordinatord.service.outcomes import NotFound
from coordinatord.service.plan import PlanBody, Plans

_ID: Final = Text(16_384)  # whatever it is, it names a batch or none
_DEFAULT_LIMIT: Final = 20
_KEY: Final = "idempotency-key"


@attrs.frozen(slots=True)
class BatchRoutes:
    batches: Batches
    plans: Plans

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/batches",
                about="Post every line of an uploaded file as a job, and follow them together; without a file, a plan",
                handler=self.create,
                headers={_KEY: Parameter(Visible(255), "the same key and body answer with the same batch")},
                body=Body.any_of([BatchBody, PlanBody], read_batch),
                session=True,
                replies=(
                    Reply(200, shape=batch_views.Batch),
                    Reply(402, shape=plan_views.Plan),
                    *malformed(
                        "invalid_endpoint", "invalid_completion_window", "invalid_input_file", "idempotency_key_reused"
                    ),
                    Reply(401, "invalid_session"),
                ),
            ),
            Route(
                method="GET",
                path="/v1/batches",
                about="This address's batches, newest first",
                handler=self.page,
                query={
                    "limit": Parameter(Decimal(32, 1, 100), f"at most so many (default {_DEFAULT_LIMIT})"),
                    "after": Parameter(_ID, "those behind this batch"),
                },
                session=True,
                replies=(
                    Reply(200, shape=batch_views.BatchList),
                    *malformed(),
                    Reply(401, "invalid_session"),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/batches/{id}",
                about="One batch",
                handler=self.one,
                segments={"id": _ID},
                session=True,
                replies=(
                    Reply(200, shape=batch_views.BatchAsOf),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="POST",
                path="/v1/batches/{id}/cancel",
                about="Post no more lines of a batch; jobs on the chain stay as they are",
                handler=self.cancel,
                segments={"id": _ID},
                session=True,
                replies=(
                    Reply(200, shape=batch_views.BatchAsOf),
                    *malformed("batch_not_cancellable"),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
            ),
        ]

    async def create(self, request: Request) -> Answer:
        body: BatchBody | PlanBody = request.body
        if isinstance(body, PlanBody):
            return answers.planned(await self.plans.plan(body))
        created = await self.batches.create(request.owner, body, request.headers.get(_KEY))
        return answers.ok(batch_views.batch(created))

    async def page(self, request: Request) -> Answer:
        query = request.query
        page = await self.batches.page(request.owner, query.get("after"), query.get("limit", _DEFAULT_LIMIT))
        listed = batch_views.batch_list(page.batches, page.snapshot.block_number, has_more=page.has_more)
        return answers.ok(listed)

    async def one(self, request: Request) -> Answer:
        found = await self.batches.find(request.owner, request.path["id"])
        if found is None:
            return answers.not_found(NotFound("batch"))
        return answers.ok(batch_views.batch_as_of(found.batch, found.snapshot.block_number))

    async def cancel(self, request: Request) -> Answer:
        return answers.batch_cancelled(await self.batches.cancel(request.owner, request.path["id"]))
