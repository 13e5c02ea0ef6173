"""HTTP of the local API: an ASGI application that lets in programs of this user and nobody's web page.

A page in this user's browser can reach a loopback address. It is kept out three times: it has no key, it sends an
`origin` (refused unless the settings list it), and under a name of its own that leads here (DNS rebinding) its `host`
is none of ours. There are no CORS headers but for listed origins, and no WebSockets.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs

from common.refusal import Refused
from svc.errors import SvcError
from svc.serve.exchange import (
    EventReply,
    LocalRequest,
    Receive,
    RequesterGone,
    Send,
    WholeReply,
    send_events,
    send_whole,
)
from svc.serve.keys import Keys
from svc.serve.problems import Problem, problem_of, problem_of_refusal, unexpected

Scope = MutableMapping[str, Any]

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)


@attrs.frozen
class Handled:
    """`pattern` is matched against the whole path; its groups are handed on as arguments."""

    method: str
    pattern: re.Pattern[str]
    act: Callable[..., Awaitable[WholeReply | EventReply]]


def handled(method: str, path: str, act: Callable[..., Awaitable[WholeReply | EventReply]]) -> Handled:
    """`path` with `{id}` for one segment, and `{name}` for a model's name, which may hold slashes."""
    pattern = path.replace("{id}", r"([^/]+)").replace("{name}", r"(.+)")
    return Handled(method, re.compile(pattern), act)


@attrs.define
class Application:
    """`hosts`: names and ports by which it may be called. `say` is told of what went wrong here."""

    routes: Sequence[Handled]
    keys: Keys
    hosts: frozenset[str]
    origins: frozenset[str]
    say: Callable[[str], object]
    most: int
    _under_way: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await _lifespan(receive, send)
            case "http":
                self._under_way += 1
                try:
                    await self._serve(scope, receive, send)
                finally:
                    self._under_way -= 1
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1003})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        own = headers.get("x-request-id", "")
        request_id = own if _REQUEST_ID.fullmatch(own) else f"req_{secrets.token_hex(16)}"
        told = {"x-request-id": request_id, **self._cors(headers)}
        try:
            reply = await self._answer(scope, headers, receive, request_id)
        except RequesterGone:
            return
        except Problem as problem:
            reply = _refusal(problem)
        except SvcError as error:
            reply = _refusal(problem_of(error))
        except Refused as refusal:
            reply = _refusal(problem_of_refusal(refusal))
        except Exception as error:  # of one request: the others go on
            self.say(f"{request_id}: {scope['method']} {scope['path']} failed: {type(error).__name__}: {error}")
            reply = _refusal(unexpected())
        if isinstance(reply, WholeReply):
            await send_whole(reply, told, send)
        else:
            await send_events(reply, told, receive, send)

    async def _answer(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, request_id: str
    ) -> WholeReply | EventReply:
        self._check_caller(headers)
        if scope["method"] == "OPTIONS" and headers.get("origin"):
            return WholeReply(b"", 204)  # of a listed origin: all others were refused
        key = self.keys.find(headers.get("authorization", ""))
        if self._under_way > self.most:
            message = f"{self.most} requests are under way (server.concurrent): send it again later"
            raise Problem(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry=True)
        path, method = scope["path"], scope["method"]
        found = [(route, match) for route in self.routes if (match := route.pattern.fullmatch(path))]
        for route, match in found:
            if route.method == method:
                query = _query(scope.get("query_string", b""))
                asked = LocalRequest(method, path, query, headers, key, request_id, receive)
                return await route.act(asked, *match.groups())
        if found:
            allowed = ", ".join(sorted({route.method for route, _ in found}))
            raise Problem(405, f"{path} takes {allowed}", code="method_not_supported")
        raise Problem(404, f"there is no {path} here: a market of sealed jobs has nothing like it", code="unknown_url")

    def _check_caller(self, headers: Mapping[str, str]) -> None:
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host not in self.hosts:
            message = f"host {host!r} is none of this server's names; server.hosts adds one"
            raise Problem(421, message, type="permission_error", code="host_not_allowed")
        if origin is not None and origin not in self.origins:
            message = f"pages of {origin} may not call this; server.origins lists those that may"
            raise Problem(403, message, type="permission_error", code="origin_not_allowed")

    def _cors(self, headers: Mapping[str, str]) -> dict[str, str]:
        origin = headers.get("origin")
        if origin is None or origin not in self.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": "authorization, content-type, idempotency-key, openai-beta, x-stainless-os",
            "access-control-expose-headers": "x-request-id, x-svc-job-id, x-svc-amount, x-svc-cost, x-svc-provider",
            "vary": "origin",
        }


def names_of(host: str, port: int, more: Sequence[str]) -> frozenset[str]:
    """Values of `host` that callers may send."""
    own = {f"[{host}]" if ":" in host else host, "127.0.0.1", "localhost", "[::1]"}
    named = {name.lower() for name in more}  # with their ports, where they have one
    with_port = {f"{name}:{port}" for name in own | {name for name in named if ":" not in name}}
    return frozenset(with_port | named | (own if port in {80, 443} else set()))


def _refusal(problem: Problem) -> WholeReply:
    return WholeReply(problem.body(), problem.status, problem.headers())


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))
