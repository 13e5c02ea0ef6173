"""Routes of providers, asks, floors and the escrow allowlist."""

import attrs

from common.api import market
from common.api.fields import QueryUint
from coordinatord.api.book import bodies
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.registries_sql import read_allowlist, read_asks, read_floors, read_providers
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.pages import page_response, read_page_bounds
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    INDEX_REPLIES,
    PAGE_PARAMETERS,
    Handler,
    Parameter,
    Reply,
    Request,
    Route,
    malformed_replies,
)

_MODEL_PARAMETER = {"model": Parameter(QueryUint(32), "only asks for the model with this id", example=1)}


@attrs.frozen(slots=True)
class ProviderRoutes:
    reads: IndexReads

    def routes(self) -> list[Route]:
        def paged_route(name: str, path: str, about: str, shape: type, handler: Handler) -> Route:
            return Route(
                method="GET",
                path=path,
                id=name,
                tag="Providers",
                about=about,
                handler=handler,
                query={**filters.get(name, {}), **PAGE_PARAMETERS},
                replies=(Reply(200, shape=shape, about="A page"), *malformed_replies(), *INDEX_REPLIES),
                index_backed=True,
                paged=True,
            )

        window = {"sla": Parameter(QueryUint(32), "only asks for this window, in seconds")}
        filters = {"listAsks": _MODEL_PARAMETER, "listFloors": _MODEL_PARAMETER | window}
        return [
            paged_route("listAsks", "/evm/asks", "List asks of listed providers", market.AskList, self.list_asks),
            paged_route(
                "listFloors",
                "/evm/asks/floors",
                "List the lowest rates by model and window",
                market.FloorList,
                self.list_floors,
            ),
            paged_route(
                "listProviders", "/evm/providers", "List providers by id", market.ProviderList, self.list_providers
            ),
            paged_route(
                "listAllowlist", "/evm/allowlist", "List the escrow allowlist", market.Allowlist, self.list_allowlist
            ),
            Route(
                method="GET",
                path="/evm/providers/{id}",
                id="getProvider",
                tag="Providers",
                about="Read one provider",
                handler=self.read_provider,
                segments={"id": Parameter(QueryUint(32), "id of the provider", example=2)},
                replies=(
                    Reply(200, shape=market.ProviderAsOf, about="The provider"),
                    *malformed_replies(),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
        ]

    async def list_asks(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_asks(database, request.query.get("model"), *read_page_bounds(request))
        )
        return page_response(request, snapshot, "asks", rows, bodies.ask_shape)

    async def list_floors(self, request: Request) -> Response:
        model, sla = request.query.get("model"), request.query.get("sla")
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_floors(database, model, sla, *read_page_bounds(request))
        )
        return page_response(request, snapshot, "floors", rows, bodies.floor_shape)

    async def list_providers(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_providers(database, *read_page_bounds(request))
        )
        return page_response(request, snapshot, "providers", rows, bodies.provider_shape)

    async def list_allowlist(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(
            lambda database: read_allowlist(database, *read_page_bounds(request))
        )
        return page_response(request, snapshot, "entries", rows, bodies.allowlist_entry_shape)

    async def read_provider(self, request: Request) -> Response:
        found = await self.reads.providers.get(request.path["id"])
        if found.value is None:
            return responses.not_found(NoSuchObject("provider"))
        block = found.snapshot.block_number
        return responses.ok(bodies.provider_shape_as_of(found.value, block), snapshot=found.snapshot)
