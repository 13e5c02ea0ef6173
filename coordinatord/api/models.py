"""The catalogue."""

import attrs
import msgspec

from coordinatord.api import answers, views
from coordinatord.api.answers import Answer
from coordinatord.api.paging import page, page_of
from coordinatord.api.routes import INDEX, PAGE, Reply, Request, Route, malformed
from coordinatord.fields import Text
from coordinatord.service.index_reads import IndexReads
from coordinatord.store.catalog import ModelRow, read_models
from coordinatord.store.database import Database
from coordinatord.store.snapshot import Snapshot


class ModelList(msgspec.Struct):
    object: str
    data: list[views.Model]
    as_of_block: views.Digits


@attrs.frozen(slots=True)
class Models:
    database: Database
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
                    replies=(Reply(200, shape=ModelList), *malformed(), *INDEX),
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
                    Reply(200, shape=views.ModelAsOf),
                    *malformed(),
                    Reply(404, "model_not_found", views.ModelNotFound),
                    *INDEX,
                ),
                index_backed=True,
            ),
        ]

    async def list(self, request: Request) -> Answer:
        snapshot, rows = await read_models(self.database, *page_of(request))
        return page(request, snapshot, "data", rows, views.model, object="list")

    async def one(self, request: Request) -> Answer:
        name = request.path["name"]
        found = await self.reads.model.get(name)
        return answers.model_not_found(name) if found.value is None else _model(found.value, found.snapshot)


def _model(row: ModelRow, snapshot: Snapshot) -> Answer:
    return answers.ok(views.model_as_of(row, snapshot.block_number), snapshot=snapshot)
