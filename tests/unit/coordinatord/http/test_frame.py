import json

import pytest

from common.daemon.asgi import Receive, Scope, Send
from coordinatord.base.metrics import http_requests
from coordinatord.http import responses
from coordinatord.http.cors import Origins
from coordinatord.http.middleware import RequestMiddleware
from coordinatord.http.responses import send_response
from tests.unit.coordinatord.http.asgi import ask, scope

pytestmark = pytest.mark.anyio


async def test_unexpected_failure_is_a_500_without_details(capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(_: Scope, __: Receive, ___: Send) -> None:
        raise KeyError("the secret of the house")

    answer = await ask(RequestMiddleware(broken), scope())
    assert answer.status == 500
    assert answer.headers["x-svc-retryable"] == "false"
    assert answer.headers["x-request-id"]
    assert json.loads(answer.body)["error"]["type"] == "internal_error"
    assert b"secret" not in answer.body
    assert answer.headers["x-request-id"] in capsys.readouterr().out


async def test_failure_is_readable_by_allowed_origins_only() -> None:
    async def broken(_: Scope, __: Receive, ___: Send) -> None:
        raise KeyError

    frame = RequestMiddleware(broken, Origins.of(["https://app.example"]))
    allowed = await ask(frame, scope(origin="https://app.example"))
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (500, "https://app.example")
    assert "x-svc-retryable" in allowed.headers["access-control-expose-headers"]
    assert allowed.headers["vary"] == "origin"
    other = await ask(frame, scope(origin="https://other.example"))
    assert not [name for name in other.headers if name.startswith("access-control")]


async def test_failure_after_the_head_ends_the_connection() -> None:
    async def broken(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError

    with pytest.raises(KeyError):
        await ask(RequestMiddleware(broken), scope())


async def test_methods_of_a_strangers_own_make_one_series() -> None:
    async def found_nothing(_: Scope, __: Receive, send: Send) -> None:
        await send_response(send, responses.internal_error())

    def methods() -> set[str]:
        samples = [sample for metric in http_requests.collect() for sample in metric.samples]
        return {sample.labels["method"] for sample in samples}

    before = methods()
    for n in range(20):
        await ask(RequestMiddleware(found_nothing), scope(f"METHOD-{n}"))
    assert methods() - before <= {"other"}


async def test_websocket_is_refused() -> None:
    closed = []

    async def send(message: dict[str, object]) -> None:
        closed.append(message["type"])

    await RequestMiddleware(broken_app)({"type": "websocket"}, None, send)  # type: ignore[arg-type] # never received from
    assert closed == ["websocket.close"]


async def broken_app(_: Scope, __: Receive, ___: Send) -> None:
    raise AssertionError("not for this application")


async def test_lifespan_is_completed() -> None:
    messages = iter(["lifespan.startup", "lifespan.shutdown"])
    said = []

    async def receive() -> dict[str, str]:
        return {"type": next(messages)}

    async def send(message: dict[str, object]) -> None:
        said.append(message["type"])

    await RequestMiddleware(broken_app)({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
