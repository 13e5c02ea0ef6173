"""Providers, their asks, the floors under them, and the allowlist."""

import attrs
import msgspec

from coordinatord.api import answers, views
from coordinatord.api.answers import Answer
from coordinatord.api.paging import page, page_of
from coordinatord.api.routes import INDEX, PAGE, Handler, Parameter, Reply, Request, Route, malformed
from coordinatord.fields import Decimal
from coordinatord.service.index_reads import IndexReads
from coordinatord.service.outcomes import NotFound
from coordinatord.store.allowlist import read_allowlist
from coordinatord.store.asks import read_asks, read_floors
from coordinatord.store.database import Database
from coordinatord.store.providers import ProviderRow, read_providers
from coordinatord.store.snapshot import Snapshot

_MODEL = {"model": Parameter(Decimal(32), "a model id")}


class AskList(msgspec.Struct):
    asks: list[views.Ask]
    as_of_block: views.Digits


class FloorList(msgspec.Struct):
    floors: list[views.Floor]
    as_of_block: views.Digits


class ProviderList(msgspec.Struct):
    providers: list[views.Provider]
    as_of_block: views.Digits


class Allowlist(msgspec.Struct):
    entries: list[views.AllowlistEntry]
    as_of_block: views.Digits


@attrs.frozen(slots=True)
class Providers:
    database: Database
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

        sla = {"sla": Parameter(Decimal(32), "seconds")}
        return [
            paged("/evm/asks", "Asks of listed providers", AskList, self.asks, _MODEL),
            paged("/evm/asks/floors", "The lowest rates per model and window", FloorList, self.floors, _MODEL | sla),
            paged("/evm/providers", "Providers by id", ProviderList, self.list, {}),
            paged("/evm/allowlist", "The escrow allowlist", Allowlist, self.allowlist, {}),
            Route(
                method="GET",
                path="/evm/providers/{id}",
                about="One provider",
                handler=self.one,
                segments={"id": Decimal(32)},
                replies=(Reply(200, shape=views.ProviderAsOf), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
        ]

    async def asks(self, request: Request) -> Answer:
        snapshot, rows = await read_asks(self.database, request.query.get("model"), *page_of(request))
        return page(request, snapshot, "asks", rows, views.ask)

    async def floors(self, request: Request) -> Answer:
        model, sla = request.query.get("model"), request.query.get("sla")
        snapshot, rows = await read_floors(self.database, model, sla, *page_of(request))
        return page(request, snapshot, "floors", rows, views.floor)

    async def list(self, request: Request) -> Answer:
        snapshot, rows = await read_providers(self.database, *page_of(request))
        return page(request, snapshot, "providers", rows, views.provider)

    async def allowlist(self, request: Request) -> Answer:
        snapshot, rows = await read_allowlist(self.database, *page_of(request))
        return page(request, snapshot, "entries", rows, views.allowlist_entry)

    async def one(self, request: Request) -> Answer:
        found = await self.reads.provider.get(request.path["id"])
        return (
            answers.not_found(NotFound("provider")) if found.value is None else _provider(found.value, found.snapshot)
        )


def _provider(row: ProviderRow, snapshot: Snapshot) -> Answer:
    return answers.ok(views.provider_as_of(row, snapshot.block_number), snapshot=snapshot)
