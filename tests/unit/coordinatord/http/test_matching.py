import pytest

from coordinatord.http.matching import Matcher
from coordinatord.http.responses import Response
from coordinatord.http.routing import Request, Route


async def _handler(_: Request) -> Response:
    return Response(200, b"")


def _route(path: str) -> Route:
    return Route(method="GET", path=path, id="rows", tag="Rows", about="", handler=_handler, replies=())


MATCHER = Matcher(
    [
        _route(path)
        for path in (
            "/evm/jobs/{job_id}",
            "/evm/jobs/summary",
            "/v1/jobs/{id}",
            "/v1/jobs/{id}/cancel",
            "/v1/models",
            "/v1/models/{name...}",
        )
    ]
)


@pytest.mark.parametrize(
    ("path", "route", "texts"),
    [
        ("/evm/jobs/summary", "/evm/jobs/summary", {}),
        ("/evm/jobs/abc", "/evm/jobs/{job_id}", {"job_id": "abc"}),
        ("/v1/jobs/a%2Fcancel", "/v1/jobs/{id}", {"id": "a/cancel"}),
        ("/v1/jobs/a/cancel", "/v1/jobs/{id}/cancel", {"id": "a"}),
        ("/v1/%6Aobs/a", "/v1/jobs/{id}", {"id": "a"}),
        ("/v1/models/a/b", "/v1/models/{name...}", {"name": "a/b"}),
        ("/v1/models/a%2Fb", "/v1/models/{name...}", {"name": "a/b"}),
        ("/v1/models/a%252Fb", "/v1/models/{name...}", {"name": "a%2Fb"}),
        ("/v1/models/..", "/v1/models/{name...}", {"name": ".."}),
        ("/v1/models/a%00", "/v1/models/{name...}", {"name": ""}),
        ("/v1/models/%ff", "/v1/models/{name...}", {"name": ""}),
    ],
)
def test_path_means_this_route(path: str, route: str, texts: dict[str, str]) -> None:
    match = MATCHER.match(path.encode())
    assert match is not None
    assert match.routes["GET"].path == route
    assert match.segment_texts == texts


@pytest.mark.parametrize("path", ["/", "", "/v1", "/v1/jobs/", "/v1/jobs/a/", "/v1/jobs//cancel", "/v1/models/", "x"])
def test_path_means_no_route(path: str) -> None:
    assert MATCHER.match(path.encode()) is None
