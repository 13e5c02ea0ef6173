"""Routes of the job book and the market: pages of jobs, an owner's sums, one row, and the polls of providers."""

import attrs

from common.api import jobs, limits, market, why
from common.api.error_bodies import ModelNotFound
from common.api.fields import ADDRESS, BYTES32, Choice, Decimal, Text
from common.api.words import NOTHING, WORDS
from coordinatord.api.book import bodies
from coordinatord.api.book.book_sql import JobFilter, JobRow, read_page, read_summary
from coordinatord.api.book.polls import Leased, Polls
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.registries_sql import (
    ModelRow,
    ProviderRow,
    read_allowlist,
    read_asks,
    read_floors,
    read_models,
    read_providers,
)
from coordinatord.api.book.why import WhyReads
from coordinatord.base.outcomes import NoSuchObject, NotSigned
from coordinatord.http import relay_responses, responses
from coordinatord.http.pages import page, page_of
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX, PAGE, Handler, Parameter, Reply, Request, Route, malformed
from coordinatord.http.streaming import HeldResponse
from coordinatord.storage.database.snapshot_sql import Snapshot

_FILTERS = {
    "state": Parameter(
        Choice(("Open", "Claimed", "Settled", "Cancelled")),
        "jobs in this state; `Cancelled` are all that ended without a result",
        example="Open",
    ),
    "model": Parameter(Decimal(32), "jobs of the model of this id", example=1),
    "provider": Parameter(Decimal(32), "jobs claimed by the provider of this id"),
    "owner": Parameter(ADDRESS, "jobs of this wallet"),
    "min_rate_in": Parameter(Decimal(128), "jobs that pay so much for 10^6 input units, in base units, or more"),
    "min_rate_out": Parameter(Decimal(128), "jobs that pay so much for 10^6 output units, in base units, or more"),
    "posted_before": Parameter(Decimal(63), "jobs posted at or before this block"),
    "order": Parameter(
        Choice(("oldest", "newest")), "by the block of the post: `oldest` first (the default) or `newest`"
    ),
    "free": Parameter(
        Decimal(32),
        "a provider's poll: it is leased at most so many jobs in all, those that it holds already among them; 0 leases"
        " no more",
    ),
    "wait": Parameter(
        Decimal(32, 0, limits.LONGEST_WAIT),
        "seconds that a poll with room for jobs is held while there are none for it, 0 (the default) to"
        f" {limits.LONGEST_WAIT}",
    ),
    "pending": Parameter(
        Choice(("0", "1")),
        "`1`: a poll with room for jobs is offered jobs whose post is under way, too, in `pending`",
    ),
}


_OPEN = {
    "jobs": [
        {
            "state": 0,
            "ended_because": 0,
            "provider_id": "0",
            "claimed_at": "0",
            "completion_tok": "0",
            "result_cid": None,
            "reclaimable_at": NOTHING,
            "ended_at": NOTHING,
        }
    ]
}

_SETTLED = {"reclaimable_at": NOTHING}
_WHY = {"state": 0}


@attrs.frozen(slots=True)
class BookRoutes:
    reads: IndexReads
    polls: Polls
    why: WhyReads

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/jobs",
                id="listJobs",
                tag="Job book",
                about="List jobs; with `free`, poll for jobs to claim",
                details=(
                    "All filters are optional. With `free` it is a provider's poll: it needs a provider's session,"
                    " `state=Open` and `model`. It answers at once, or with `wait` as soon as there is a job for it,"
                    " and with none when the time is over; sooner where it has no place to wait. It says that the"
                    " provider is there with so many free slots for the model, leases it up to that many jobs (open"
                    " bids, and orders designated to it, the oldest first) for as long as the operator has set,"
                    " counting those that it holds already, and returns the jobs that it holds: they come with every"
                    " poll until they are claimed or the lease has lapsed. Claim at once what the latest answer lists."
                    " A job that was cancelled a moment ago may still be among them."
                ),
                handler=self.list,
                query={**_FILTERS, **PAGE},
                replies=(
                    Reply(200, shape=jobs.JobList, about="A page of jobs", example=_OPEN),
                    *malformed(),
                    Reply(401, "invalid_session"),
                    Reply(403, "not_registered"),
                    *INDEX,
                ),
                session_with="free",
                index_backed=True,
                paged=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/summary",
                id="getOwnerSummary",
                tag="Job book",
                about="Sum up an owner's jobs",
                handler=self.summary,
                query={"owner": Parameter(ADDRESS, "wallet that ordered", required=True)},
                replies=(Reply(200, shape=jobs.Summary, about="The sums"), *malformed(), *INDEX),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/{job_id}",
                id="getBookJob",
                tag="Job book",
                about="Read one row of the job book",
                handler=self.one,
                segments={"job_id": Parameter(BYTES32)},
                replies=(
                    Reply(200, shape=jobs.JobAsOf, about="The job", example=_SETTLED),
                    *malformed(),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}/why",
                id="whyJob",
                tag="Jobs",
                about="Tell why nobody has claimed a job",
                details=(
                    "Of an open job: every provider that polls or asks for its model, all that keeps each from it, and"
                    " the changes that would help. `takes` says that the provider's next poll would be handed the job"
                    " and that its asks want it; it may leave it all the same. The answer is up to a second old. Of"
                    " a job that is claimed or has ended it says that alone."
                ),
                handler=self.explain,
                segments={"id": Parameter(BYTES32, "id of the job", example=WORDS["job_id"].example)},
                replies=(
                    Reply(200, shape=why.Why, about="What is the matter", example=_WHY),
                    *malformed(),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
                of_the_moment=True,
            ),
        ]

    async def list(self, request: Request) -> Response | HeldResponse:
        query = request.query
        wanted = JobFilter(
            state=query.get("state"),
            model_id=query.get("model"),
            provider_id=query.get("provider"),
            owner=query.get("owner"),
            min_rate_in=query.get("min_rate_in"),
            min_rate_out=query.get("min_rate_out"),
            posted_before=query.get("posted_before"),
            newest_first=query.get("order") == "newest",
        )
        limit, offset = page_of(request)
        if request.session is None:
            snapshot, rows = await self.reads.lists.read(lambda database: read_page(database, wanted, limit, offset))
            return page(request, snapshot, "jobs", rows, bodies.job)
        poll = request.session, wanted, query["free"], limit, offset
        seconds: int = query.get("wait", 0)
        pending = query.get("pending") == "1"
        if not seconds:
            return _polled(request, await self.polls.poll(*poll, pending=pending))

        async def answer() -> tuple[Response, float]:
            held, waited = await self.polls.poll_and_wait(
                *poll, pending=pending, seconds=seconds, caller=request.caller
            )
            return _polled(request, held), waited

        return HeldResponse(answer)

    async def summary(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_summary(database, request.query["owner"]))
        return responses.ok(bodies.summary(rows, snapshot.block_number), snapshot=snapshot)

    async def explain(self, request: Request) -> Response:
        found = await self.why.read(request.path["id"])
        return responses.not_found(found) if isinstance(found, NoSuchObject) else responses.ok(found)

    async def one(self, request: Request) -> Response:
        found = await self.reads.job.get(request.path["job_id"])
        return responses.not_found(NoSuchObject("job")) if found.value is None else _job(found.value, found.snapshot)


def _polled(request: Request, held: Leased | NotSigned) -> Response:
    if isinstance(held, NotSigned):
        return relay_responses.not_signed(held)
    if held.pending is None:
        return page(request, held.snapshot, "jobs", held.rows, bodies.job)
    offered = [bodies.pending_job(job) for job in held.pending]
    return page(request, held.snapshot, "jobs", held.rows, bodies.job, pending=offered)


def _job(row: JobRow, snapshot: Snapshot) -> Response:
    return responses.ok(bodies.job_as_of(row, snapshot.block_number), snapshot=snapshot)


# Providers, their asks, the floors under them, and the allowlist.

_MODEL = {"model": Parameter(Decimal(32), "those of the model of this id", example=1)}


@attrs.frozen(slots=True)
class ProviderRoutes:
    reads: IndexReads

    def routes(self) -> list[Route]:
        def paged(name: str, path: str, about: str, shape: type, handler: Handler) -> Route:
            return Route(
                method="GET",
                path=path,
                id=name,
                tag="Providers",
                about=about,
                handler=handler,
                query={**filters.get(name, {}), **PAGE},
                replies=(Reply(200, shape=shape, about="A page"), *malformed(), *INDEX),
                index_backed=True,
                paged=True,
            )

        window = {"sla": Parameter(Decimal(32), "those of this window, in seconds")}
        filters = {"listAsks": _MODEL, "listFloors": _MODEL | window}
        return [
            paged("listAsks", "/evm/asks", "List asks of listed providers", market.AskList, self.asks),
            paged(
                "listFloors",
                "/evm/asks/floors",
                "List the lowest rates by model and window",
                market.FloorList,
                self.floors,
            ),
            paged("listProviders", "/evm/providers", "List providers by id", market.ProviderList, self.list),
            paged("listAllowlist", "/evm/allowlist", "List the escrow allowlist", market.Allowlist, self.allowlist),
            Route(
                method="GET",
                path="/evm/providers/{id}",
                id="getProvider",
                tag="Providers",
                about="Read one provider",
                handler=self.one,
                segments={"id": Parameter(Decimal(32), "id of the provider", example=2)},
                replies=(Reply(200, shape=market.ProviderAsOf, about="The provider"), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
        ]

    async def asks(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_asks(database, request.query.get("model"), *page_of(request))
        )
        return page(request, snapshot, "asks", rows, bodies.ask)

    async def floors(self, request: Request) -> Response:
        model, sla = request.query.get("model"), request.query.get("sla")
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_floors(database, model, sla, *page_of(request))
        )
        return page(request, snapshot, "floors", rows, bodies.floor)

    async def list(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_providers(database, *page_of(request)))
        return page(request, snapshot, "providers", rows, bodies.provider)

    async def allowlist(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_allowlist(database, *page_of(request)))
        return page(request, snapshot, "entries", rows, bodies.allowlist_entry)

    async def one(self, request: Request) -> Response:
        found = await self.reads.provider.get(request.path["id"])
        return (
            responses.not_found(NoSuchObject("provider"))
            if found.value is None
            else _provider(found.value, found.snapshot)
        )


def _provider(row: ProviderRow, snapshot: Snapshot) -> Response:
    return responses.ok(bodies.provider_as_of(row, snapshot.block_number), snapshot=snapshot)


# The catalogue.


@attrs.frozen(slots=True)
class ModelRoutes:
    reads: IndexReads

    def routes(self) -> list[Route]:
        return [
            *(
                Route(
                    method="GET",
                    path=path,
                    id=name,
                    tag="Models",
                    about=about,
                    handler=self.list,
                    query=PAGE,
                    replies=(Reply(200, shape=market.ModelList, about="A page of models"), *malformed(), *INDEX),
                    index_backed=True,
                    paged=True,
                )
                for path, name, about in (
                    ("/v1/models", "listModels", "List the models of the catalogue"),
                    ("/evm/models", "listModelsOfChain", "List the models of the catalogue: as /v1/models"),
                )
            ),
            Route(
                method="GET",
                path="/v1/models/{name...}",
                id="getModel",
                tag="Models",
                about="Read one model by its name, which may contain slashes",
                details=(
                    "The name is sent as it is or percent-encoded. Its 404 is the one error without `param` and"
                    " `x-svc-retryable`."
                ),
                handler=self.one,
                segments={"name": Parameter(Text(limits.HEAD_VALUE), "name of the model", example="demo/text-small")},
                replies=(
                    Reply(200, shape=market.ModelAsOf, about="The model"),
                    *malformed(),
                    Reply(404, "model_not_found", ModelNotFound, about="`model_not_found`: no model has this name"),
                    *INDEX,
                ),
                index_backed=True,
            ),
        ]

    async def list(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_models(database, *page_of(request)))
        return page(request, snapshot, "data", rows, bodies.model, object="list")

    async def one(self, request: Request) -> Response:
        name = request.path["name"]
        found = await self.reads.model.get(name)
        return responses.model_not_found(name) if found.value is None else _model(found.value, found.snapshot)


def _model(row: ModelRow, snapshot: Snapshot) -> Response:
    return responses.ok(bodies.model_as_of(row, snapshot.block_number), snapshot=snapshot)
