import pytest

from common.daemon.asgi import Receive, Scope, Send
from coordinatord.http.cors import CorsMiddleware, Origins
from coordinatord.http.responses import Response, send_response
from tests.unit.coordinatord.http.asgi import ask, scope

pytestmark = pytest.mark.anyio
ORIGIN = "https://app.example"


async def _app(_: Scope, __: Receive, send: Send) -> None:
    await send_response(send, Response(200, b"{}"))


CORS = CorsMiddleware(_app, Origins.of([ORIGIN]))


async def test_allowed_origin_may_read_specified_headers() -> None:
    answer = await ask(CORS, scope(origin=ORIGIN))
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-expose-headers"] == (
        "x-request-id, x-svc-retryable, x-svc-page-truncated, x-svc-next-offset"
    )
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("origin", ["https://app.example.evil.example", "http://app.example", "null"])
async def test_other_origins_get_no_cors_headers(origin: str) -> None:
    for method in ("GET", "OPTIONS"):
        answer = await ask(CORS, scope(method, origin=origin, access_control_request_method="POST"))
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_preflight_is_answered_for_the_route() -> None:
    answer = await ask(CORS, scope("OPTIONS", origin=ORIGIN, access_control_request_method="POST"))
    assert answer.status == 204
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert allowed >= {"authorization", "content-type", "idempotency-key", "range"}  # every header that routes read
