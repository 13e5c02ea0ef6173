"""Routes of the job book and the market: pages of jobs, an owner's sums, one row, and the polls of providers."""

from typing import Any

import attrs

from common import scalars, strict_json
from common.refusal import Refused
from common.scalars import hex_of
from common.wire import jobs, market
from common.wire.fields import ADDRESS, BYTES32, Choice, Decimal, Text
from common.wire.shapes import OMITTED, Digits, ModelNotFound
from coordinatord.base.errors import NoSuchObject, NotSigned
from coordinatord.book.polls import Polls
from coordinatord.book.reads import IndexReads
from coordinatord.book.registries_sql import (
    AllowlistRow,
    AskRow,
    FloorRow,
    ModelRow,
    ProviderRow,
    read_allowlist,
    read_asks,
    read_floors,
    read_models,
    read_providers,
)
from coordinatord.book.sql import JobFilter, JobRow, OwnerSummary, read_page, read_summary
from coordinatord.database.batched_reads import Snapshot
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    INDEX,
    PAGE,
    Handler,
    Parameter,
    Reply,
    Request,
    Route,
    malformed,
    page,
    page_of,
)

# Rows of the index as the shapes that are sent.


def model(row: ModelRow) -> market.ModelShape:
    return market.ModelShape(row.name, row.owned_by, _model_details(row))


def model_as_of(row: ModelRow, block: int) -> market.ModelAsOf:
    return market.ModelAsOf(id=row.name, owned_by=row.owned_by, svc=_model_details(row), as_of_block=str(block))


def _model_details(row: ModelRow) -> market.ModelDetails[Digits]:
    schema = published_json(row.params_schema.encode())
    return market.ModelDetails(str(row.model_id), row.enabled, schema if isinstance(schema, dict) else OMITTED)


def _job_fields(row: JobRow) -> dict[str, Any]:
    return {
        "job_id": hex_of(row.job_id),
        "owner": hex_of(row.owner),
        "c": hex_of(row.c),
        "model_id": str(row.model_id),
        "sla_secs": str(row.sla_secs),
        "designated": str(row.designated),
        "rate_in": row.rate_in,
        "rate_out": row.rate_out,
        "units_in": str(row.units_in),
        "units_out": str(row.units_out),
        "expires_at": str(row.expires_at),
        "provider_id": str(row.provider_id),
        "claimed_at": str(row.claimed_at),
        "completion_tok": str(row.completion_tok),
        "posted_block": str(row.posted_block),
        "state": row.state,
        "ended_because": row.ended_because,
        "task_cid": row.task_cid,
        "result_cid": row.result_cid,
    }


def job(row: JobRow) -> jobs.JobShape[Digits]:
    return jobs.JobShape(**_job_fields(row))


def job_as_of(row: JobRow, block: int) -> jobs.JobAsOf:
    return jobs.JobAsOf(**_job_fields(row), as_of_block=str(block))


def summary(rows: list[OwnerSummary], block: int) -> jobs.Summary:
    """`rows`: the total first."""
    total, *models = rows
    return jobs.Summary(
        jobs=str(total.jobs),
        completed=str(total.completed),
        priced=str(total.priced),
        escrowed=total.escrowed,
        by_model=tuple(
            jobs.ModelSummary(str(m.jobs), str(m.completed), str(m.priced), m.escrowed, str(m.model_id)) for m in models
        ),
        as_of_block=str(block),
    )


def _provider_fields(row: ProviderRow) -> dict[str, Any]:
    return {
        "provider_id": str(row.provider_id),
        "operator": hex_of(row.operator),
        "box_key": hex_of(row.box_key) if row.box_key is not None and any(row.box_key) else None,
        "evidence": _evidence(row.evidence),
        "listed": row.listed,
        "reputation": str(row.reputation),
        "allow_all_models": row.allow_all_models,
        "allowed_models": tuple(str(model_id) for model_id in row.allowed_models),
        "capacity": str(row.capacity),
        "active_jobs": str(row.active_jobs),
    }


def provider(row: ProviderRow) -> market.ProviderShape[Digits]:
    return market.ProviderShape(**_provider_fields(row))


def provider_as_of(row: ProviderRow, block: int) -> market.ProviderAsOf:
    return market.ProviderAsOf(**_provider_fields(row), as_of_block=str(block))


def _evidence(raw: bytes | None) -> object:
    """Whatever the provider published: its JSON, or its bytes as hex when they are none."""
    if not raw:
        return None
    try:
        return strict_json.parse(raw)
    except Refused:
        return hex_of(raw)


def ask(row: AskRow) -> market.AskShape[Digits]:
    return market.AskShape(str(row.provider_id), str(row.model_id), str(row.sla), row.rate_in, row.rate_out)


def floor(row: FloorRow) -> market.Floor[Digits]:
    return market.Floor(str(row.model_id), str(row.sla), row.rate_in, row.rate_out)


def allowlist_entry(row: AllowlistRow) -> market.AllowlistEntry:
    entry = published_json(row.entry.encode())
    return market.AllowlistEntry(scalars.hex_of(row.key), row.status, entry if isinstance(entry, dict) else {})


def published_json(raw: bytes) -> object:
    """JSON that somebody published on the chain, or None: the chain does not check it."""
    try:
        return strict_json.parse(raw)
    except Refused:
        return None


_FILTERS = {
    "state": Parameter(Choice(("Open", "Claimed", "Settled", "Cancelled"))),
    "model": Parameter(Decimal(32), "a model id"),
    "provider": Parameter(Decimal(32), "jobs claimed by this provider"),
    "owner": Parameter(ADDRESS),
    "min_rate_in": Parameter(Decimal(128)),
    "min_rate_out": Parameter(Decimal(128)),
    "posted_before": Parameter(Decimal(63), "posted at or before this block"),
    "order": Parameter(Choice(("oldest", "newest")), "by posting block"),
    "free": Parameter(Decimal(32), "provider poll: lease up to this many jobs"),
}


@attrs.frozen(slots=True)
class BookRoutes:
    reads: IndexReads
    polls: Polls

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/jobs",
                about="The job book; with `free`, a provider's poll for jobs to claim",
                handler=self.list,
                query={**_FILTERS, **PAGE},
                replies=(
                    Reply(200, shape=jobs.JobList),
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
                about="An owner's jobs, summed up",
                handler=self.summary,
                query={"owner": Parameter(ADDRESS, required=True)},
                replies=(Reply(200, shape=jobs.Summary), *malformed(), *INDEX),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/{job_id}",
                about="One row of the book",
                handler=self.one,
                segments={"job_id": BYTES32},
                replies=(Reply(200, shape=jobs.JobAsOf), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
        ]

    async def list(self, request: Request) -> Response:
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
            return page(request, snapshot, "jobs", rows, job)
        held = await self.polls.poll(request.session, wanted, query["free"], limit, offset)
        if isinstance(held, NotSigned):
            return responses.not_signed(held)
        snapshot, rows = held
        return page(request, snapshot, "jobs", rows, job)

    async def summary(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_summary(database, request.query["owner"]))
        return responses.ok(summary(rows, snapshot.block_number), snapshot=snapshot)

    async def one(self, request: Request) -> Response:
        found = await self.reads.job.get(request.path["job_id"])
        return responses.not_found(NoSuchObject("job")) if found.value is None else _job(found.value, found.snapshot)


def _job(row: JobRow, snapshot: Snapshot) -> Response:
    return responses.ok(job_as_of(row, snapshot.block_number), snapshot=snapshot)


# Providers, their asks, the floors under them, and the allowlist.

_MODEL = {"model": Parameter(Decimal(32), "a model id")}


@attrs.frozen(slots=True)
class ProviderRoutes:
    reads: IndexReads

    def routes(self) -> list[Route]:
        def paged(path: str, about: str, shape: type, handler: Handler, query: dict[str, Parameter]) -> Route:
            return Route(
                method="GET",
                path=path,
                about=about,
                handler=handler,
                query={**query, **PAGE},
                replies=(Reply(200, shape=shape), *malformed(), *INDEX),
                index_backed=True,
                paged=True,
            )

        floors = _MODEL | {"sla": Parameter(Decimal(32), "seconds")}
        return [
            paged("/evm/asks", "Asks of listed providers", market.AskList, self.asks, _MODEL),
            paged("/evm/asks/floors", "The lowest rates per model and window", market.FloorList, self.floors, floors),
            paged("/evm/providers", "Providers by id", market.ProviderList, self.list, {}),
            paged("/evm/allowlist", "The escrow allowlist", market.Allowlist, self.allowlist, {}),
            Route(
                method="GET",
                path="/evm/providers/{id}",
                about="One provider",
                handler=self.one,
                segments={"id": Decimal(32)},
                replies=(Reply(200, shape=market.ProviderAsOf), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
        ]

    async def asks(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_asks(database, request.query.get("model"), *page_of(request))
        )
        return page(request, snapshot, "asks", rows, ask)

    async def floors(self, request: Request) -> Response:
        model, sla = request.query.get("model"), request.query.get("sla")
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_floors(database, model, sla, *page_of(request))
        )
        return page(request, snapshot, "floors", rows, floor)

    async def list(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_providers(database, *page_of(request)))
        return page(request, snapshot, "providers", rows, provider)

    async def allowlist(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_allowlist(database, *page_of(request)))
        return page(request, snapshot, "entries", rows, allowlist_entry)

    async def one(self, request: Request) -> Response:
        found = await self.reads.provider.get(request.path["id"])
        return (
            responses.not_found(NoSuchObject("provider"))
            if found.value is None
            else _provider(found.value, found.snapshot)
        )


def _provider(row: ProviderRow, snapshot: Snapshot) -> Response:
    return responses.ok(provider_as_of(row, snapshot.block_number), snapshot=snapshot)


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
                    about="The models of the catalogue",
                    handler=self.list,
                    query=PAGE,
                    replies=(Reply(200, shape=market.ModelList), *malformed(), *INDEX),
                    index_backed=True,
                    paged=True,
                )
                for path in ("/v1/models", "/evm/models")
            ),
            Route(
                method="GET",
                path="/v1/models/{name...}",
                about="One model by its name, which may contain slashes",
                handler=self.one,
                segments={"name": Text(16384)},
                replies=(
                    Reply(200, shape=market.ModelAsOf),
                    *malformed(),
                    Reply(404, "model_not_found", ModelNotFound),
                    *INDEX,
                ),
                index_backed=True,
            ),
        ]

    async def list(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_models(database, *page_of(request)))
        return page(request, snapshot, "data", rows, model, object="list")

    async def one(self, request: Request) -> Response:
        name = request.path["name"]
        found = await self.reads.model.get(name)
        return responses.model_not_found(name) if found.value is None else _model(found.value, found.snapshot)


def _model(row: ModelRow, snapshot: Snapshot) -> Response:
    return responses.ok(model_as_of(row, snapshot.block_number), snapshot=snapshot)
