"""Routes of providers, asks, floors and the escrow allowlist."""

import attrs

from common.api import market
from common.api.fields import Decimal
from coordinatord.api.book import bodies
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.registries_sql import read_allowlist, read_asks, read_floors, read_providers
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.pages import page, page_of
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX, PAGE, Handler, Parameter, Reply, Request, Route, malformed

_MODEL = {"model": Parameter(Decimal(32), "asks for the model of this id", example=1)}


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

        window = {"sla": Parameter(Decimal(32), "asks for this window, in seconds")}
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
        if found.value is None:
            return responses.not_found(NoSuchObject("provider"))
        block = found.snapshot.block_number
        return responses.ok(bodies.provider_as_of(found.value, block), snapshot=found.snapshot)
