"""ASGI application of the local API. Accepts this user's programs and the server's page, and rejects other web pages.

Any page in the user's browser can send requests to a loopback address. The server rejects a request that has no key and
no session, or whose `origin` is neither the server's nor listed in the settings. To prevent DNS rebinding, it also
rejects a request whose `host` is not a name of the server. Only listed origins get CORS headers. WebSockets are closed.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import attrs

from common.refusal import Refused
from common.tracing import spans
from svc.errors import SvcError
from svc.serve.exchange import (
    ClientDisconnected,
    EventReply,
    LocalRequest,
    Receive,
    Send,
    WholeReply,
    send_event_reply,
    send_whole_reply,
)
from svc.serve.keys import ApiKey, Keys
from svc.serve.page.access import PAGE_HEADER, PageAccess
from svc.serve.problems import Problem, internal_problem, problem_from_error, problem_from_refusal

Scope = MutableMapping[str, Any]
Access = Literal["api", "page", "public"]

_REQUEST_ID_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_NO_KEY: Final = ApiKey("", b"")
_ALLOWED_HEADERS: Final = "authorization, content-type, idempotency-key, openai-beta, x-stainless-os, x-svc-max-amount"


@attrs.frozen
class LocalRoute:
    """Route of the local API. `pattern` matches the whole path; its groups become arguments of `handler`.

    `access`: `api` for a key or the page's session, `page` for the session alone, `public` for neither.
    """

    method: str
    pattern: re.Pattern[str]
    handler: Callable[..., Awaitable[WholeReply | EventReply]]
    access: Access = "api"


def local_route(
    method: str, path: str, handler: Callable[..., Awaitable[WholeReply | EventReply]], access: Access = "api"
) -> LocalRoute:
    """Return a route. In `path`, `{id}` is one segment, and `{name}` is a model name, which may contain slashes."""
    pattern = path.replace("{id}", r"([^/]+)").replace("{name}", r"(.+)")
    return LocalRoute(method, re.compile(pattern), handler, access)


@attrs.define
class Application:
    """ASGI application that dispatches requests to routes.

    `page_key` is the key for requests of the page. `hosts` are the accepted values of the `host` header. `report`
    prints a line for the operator.
    """

    routes: Sequence[LocalRoute]
    keys: Keys
    page_access: PageAccess
    page_key: ApiKey
    hosts: frozenset[str]
    origins: frozenset[str]
    report: Callable[[str], object]
    max_requests: int
    _open_requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await _answer_lifespan(receive, send)
            case "http":
                self._open_requests += 1
                try:
                    await self._serve(scope, receive, send)
                finally:
                    self._open_requests -= 1
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1003})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        client_id = headers.get("x-request-id", "")
        request_id = client_id if _REQUEST_ID_PATTERN.fullmatch(client_id) else f"req_{secrets.token_hex(16)}"
        common_headers = {"x-request-id": request_id, **self._cors_headers(headers)}
        if not spans.is_on() or scope["method"] != "POST":
            await self._handle_request(scope, headers, common_headers, receive, send)
            return
        with spans.span("request", parent=spans.read_traceparent(headers.get("traceparent")), kind="server"):
            await self._handle_request(scope, headers, common_headers, receive, send)

    async def _handle_request(
        self, scope: Scope, headers: Mapping[str, str], common_headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        request_id = common_headers["x-request-id"]
        try:
            reply = await self._route_request(scope, headers, receive, request_id)
        except ClientDisconnected:
            return
        except Problem as problem:
            reply = _error_reply(problem)
        except SvcError as error:
            reply = _error_reply(problem_from_error(error))
        except Refused as refusal:
            reply = _error_reply(problem_from_refusal(refusal))
        except Exception as error:  # one request failed: the server continues
            self.report(f"{request_id}: {scope['method']} {scope['path']} failed: {type(error).__name__}: {error}")
            reply = _error_reply(internal_problem())
        if isinstance(reply, WholeReply):
            spans.add_attributes(status=reply.status)
            with suppress(ClientDisconnected):
                await send_whole_reply(reply, common_headers, send)
        else:
            await send_event_reply(reply, common_headers, receive, send)

    async def _route_request(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, request_id: str
    ) -> WholeReply | EventReply:
        self._check_host_and_origin(headers)
        if scope["method"] == "OPTIONS" and headers.get("origin"):
            return WholeReply(b"", 204)  # _check_host_and_origin has accepted the origin
        path, method = scope["path"], scope["method"]
        matches = [(route, match) for route in self.routes if (match := route.pattern.fullmatch(path))]
        key = self._authenticate(headers, {route.access for route, _ in matches if route.method == method})
        if self._open_requests > self.max_requests:
            message = f"{self.max_requests} requests are running: retry later"
            raise Problem(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry=True)
        for route, match in matches:
            if route.method == method:
                query = _parse_query(scope.get("query_string", b""))
                request = LocalRequest(method, path, query, headers, key, request_id, receive)
                return await route.handler(request, *match.groups())
        if matches:
            allowed = ", ".join(sorted({route.method for route, _ in matches}))
            raise Problem(405, f"{path} accepts {allowed}, not {method}", code="method_not_supported")
        raise Problem(
            404, f"svc serve has no route {path}; see docs/developers/openai.md for its routes", code="unknown_url"
        )

    def _authenticate(self, headers: Mapping[str, str], access: set[Access]) -> ApiKey:
        """Return the caller's key. `access`: kinds of access of the matching routes, if any. Raises Problem (401)."""
        if "public" in access:
            return _NO_KEY
        if "page" in access or (PAGE_HEADER in headers and "authorization" not in headers):
            self.page_access.check_session(headers)
            return self.page_key
        return self.keys.authenticate(headers.get("authorization", ""))

    def _check_host_and_origin(self, headers: Mapping[str, str]) -> None:
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host not in self.hosts:
            message = f"host {host!r} is not a name of this server: add the name to server.hosts"
            raise Problem(421, message, type="permission_error", code="host_not_allowed")
        own = f"{'https' if self.page_access.uses_https else 'http'}://{host}"
        if origin is not None and origin != own and origin not in self.origins:
            message = f"pages of {origin} may not call this server: add the origin to server.origins"
            raise Problem(403, message, type="permission_error", code="origin_not_allowed")

    def _cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        origin = headers.get("origin")
        if origin is None or origin not in self.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": _ALLOWED_HEADERS,
            "access-control-expose-headers": "x-request-id, x-svc-job-id, x-svc-amount, x-svc-cost, x-svc-provider",
            "vary": "origin",
        }


def allowed_hosts(host: str, port: int, configured_hosts: Sequence[str]) -> frozenset[str]:
    """Return the values of the `host` header that clients may send."""
    own_names = {f"[{host}]" if ":" in host else host, "127.0.0.1", "localhost", "[::1]"}
    configured = {name.lower() for name in configured_hosts}  # each may include a port
    with_port = {f"{name}:{port}" for name in own_names | {name for name in configured if ":" not in name}}
    return frozenset(with_port | configured | (own_names if port in {80, 443} else set()))


def _error_reply(problem: Problem) -> WholeReply:
    return WholeReply(problem.body(), problem.status, problem.headers())


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _parse_query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))
