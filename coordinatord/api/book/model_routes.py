"""Routes of the model catalogue."""

import attrs

from common.api import limits, market
from common.api.error_bodies import ModelNotFound
from common.api.fields import Text
from coordinatord.api.book import bodies
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.registries_sql import read_models
from coordinatord.http import responses
from coordinatord.http.pages import page_response, read_page_bounds
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    INDEX_REPLIES,
    PAGE_PARAMETERS,
    Parameter,
    Reply,
    Request,
    Route,
    malformed_replies,
)


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
                    handler=self.list_models,
                    query=PAGE_PARAMETERS,
                    replies=(
                        Reply(200, shape=market.ModelList, about="A page of models"),
                        *malformed_replies(),
                        *INDEX_REPLIES,
                    ),
                    index_backed=True,
                    paged=True,
                )
                for path, name, about in (
                    ("/v1/models", "listModels", "List the models of the catalogue"),
                    ("/evm/models", "listModelsOfChain", "List the models of the catalogue, like /v1/models"),
                )
            ),
            Route(
                method="GET",
                path="/v1/models/{name...}",
                id="getModel",
                tag="Models",
                about="Read one model by its name, which may contain slashes",
                details=(
                    "Send the name unchanged or percent-encoded. The 404 of this route is the only error without"
                    " `param` and `x-svc-retryable`."
                ),
                handler=self.read_model,
                segments={
                    "name": Parameter(
                        Text(limits.MAX_HEADER_VALUE_BYTES), "name of the model", example="demo/text-small"
                    )
                },
                replies=(
                    Reply(200, shape=market.ModelAsOf, about="The model"),
                    *malformed_replies(),
                    Reply(404, "model_not_found", ModelNotFound, about="`model_not_found`: no model has this name"),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
        ]

    async def list_models(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_models(database, *read_page_bounds(request)))
        return page_response(request, snapshot, "data", rows, bodies.model_shape, object="list")

    async def read_model(self, request: Request) -> Response:
        name = request.path["name"]
        found = await self.reads.models.get(name)
        if found.value is None:
            return responses.model_not_found(name)
        block = found.snapshot.block_number
        return responses.ok(bodies.model_shape_as_of(found.value, block), snapshot=found.snapshot)
