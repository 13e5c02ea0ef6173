"""Routes of the market's page: `GET /` and the files that it is made of.

They are no part of the interface that `/openapi.json` describes: the page reads that interface like anybody else.
"""

from typing import Final

import attrs

from common.wire.fields import Text
from coordinatord.base.errors import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.response_cache import names_etag, not_modified
from coordinatord.http.responses import Response
from coordinatord.http.routing import Parameter, Reply, Request, Route
from coordinatord.web.files import StaticFile, market_page

_TAG: Final = "Page"
_KNOWN: Final = {"if-none-match": Parameter(Text(1024), "ETags of what the caller has")}


@attrs.frozen(slots=True)
class WebRoutes:
    """`enabled`: without it there are no such routes."""

    enabled: bool
    files: dict[str, StaticFile] = attrs.field(factory=market_page)

    def routes(self) -> list[Route]:
        if not self.enabled:
            return []
        return [
            Route(
                method="GET",
                path="/",
                id="getPage",
                tag=_TAG,
                about="The page of this market, for people",
                handler=self.page,
                headers=_KNOWN,
                replies=(Reply(200, media=("text/html",)),),
            ),
            Route(
                method="GET",
                path="/web/{file}",
                id="getPageFile",
                tag=_TAG,
                about="A file that the page is made of",
                handler=self.file,
                segments={"file": Parameter(Text(64), "name of the file")},
                headers=_KNOWN,
                replies=(Reply(200, media=("text/css", "text/javascript", "image/svg+xml")), Reply(404)),
            ),
        ]

    async def page(self, request: Request) -> Response:
        return _serve(self.files["index.html"], request)

    async def file(self, request: Request) -> Response:
        found = self.files.get(request.path["file"])
        return responses.not_found(NoSuchObject("file")) if found is None else _serve(found, request)


def _serve(file: StaticFile, request: Request) -> Response:
    answer = Response(200, file.body, file.headers)
    known = request.headers.get("if-none-match")
    if known is not None and names_etag(known.encode(), file.etag):
        return not_modified(answer)
    return answer
