"""Dispatch requests: match the route, check readiness, read session, query and body, call the handler."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs

from common.daemon.asgi import Receive, Scope, Send
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject, SessionRow
from coordinatord.http import responses
from coordinatord.http.bodies import BodyBudget, BodyReader, UnacceptableBody, parse_body
from coordinatord.http.caller_limits import CALLER_KEY
from coordinatord.http.matching import Matcher
from coordinatord.http.middleware import ROUTE_KEY, UNTIMED_KEY
from coordinatord.http.query import read_headers, read_query
from coordinatord.http.response_cache import BlockCache, with_etag
from coordinatord.http.responses import Response, send_response
from coordinatord.http.routing import AnyResponse, Request, Route
from coordinatord.http.streaming import HeldResponse, StreamedResponse, send_streamed_response, wait_for_response
from coordinatord.http.uploads import UploadReader

_BEARER: Final = b"bearer "
# When the cache of parsed queries has this many entries, the whole cache is cleared.
_MAX_CACHED_QUERIES: Final = 4096
# Queries with more bytes are parsed on every request.
_MAX_CACHED_QUERY_BYTES: Final = 256


@attrs.frozen(slots=True)
class DispatcherServices:
    """Services that the dispatcher uses before it calls a handler: readiness, sessions, bodies and the cache."""

    is_ready: Callable[[], Awaitable[bool]]
    find_session: Callable[[str], Awaitable[SessionRow | None]]
    body_reader: BodyReader
    body_budget: BodyBudget
    upload_reader: UploadReader
    response_cache: BlockCache


class Dispatcher:
    def __init__(self, routes: list[Route], services: DispatcherServices) -> None:
        self._matcher = Matcher(routes)
        self._services = services
        self._queries: dict[tuple[str, str, bytes], Mapping[str, Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._build_response(scope, receive)
            if isinstance(response, StreamedResponse):
                started = time.perf_counter()
                try:
                    await send_streamed_response(receive, send, response, with_body=scope["method"] != "HEAD")
                finally:
                    # Leave the duration of an endless stream out of the response times.
                    if response.length is None:
                        scope[UNTIMED_KEY] = time.perf_counter() - started
                return
            if isinstance(response, HeldResponse):
                response, scope[UNTIMED_KEY] = await wait_for_response(receive, response)
        except Refused as refusal:
            response = responses.refused(refusal)
        except Retryable as cause:
            response = responses.retry_later(cause)
        except UnacceptableBody as rejection:
            response = rejection.response
        await send_response(send, response, with_body=scope["method"] != "HEAD")

    async def _build_response(self, scope: Scope, receive: Receive) -> AnyResponse:
        method = scope["method"]
        if method in ("GET", "HEAD"):
            cached = await self._services.response_cache.get(_request_target(scope))
            if cached is not None:
                scope[ROUTE_KEY] = cached.route
                await self._require_index()
                return cached.conditional_response(_if_none_match_header(scope))
        match = self._matcher.match(scope["raw_path"])
        if match is None:
            return responses.not_found(NoSuchObject("route"))
        route = match.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*match.routes, *(["HEAD"] if "GET" in match.routes else []), "OPTIONS"}))
            if method == "OPTIONS":
                return Response(204, b"", ((b"allow", allowed.encode()),))
            return responses.method_not_allowed(allowed)
        scope[ROUTE_KEY] = route.path
        if route.index_backed:
            await self._require_index()
        response = await self._run_route(route, match.segment_texts, scope, receive)
        if method in ("POST", "PUT", "DELETE") and not isinstance(response, HeldResponse) and response.status < 300:
            self._services.response_cache.forget_position()
        return response

    async def _require_index(self) -> None:
        if not await self._services.is_ready():
            raise Retryable("not_ready", "the index is catching up with the chain; try again shortly", retry_after=1)

    async def _run_route(
        self, route: Route, segment_texts: dict[str, str], scope: Scope, receive: Receive
    ) -> AnyResponse:
        path: dict[str, Any] = {
            name: parameter.kind.read(segment_texts[name], name) for name, parameter in route.segments.items()
        }
        query = self._parse_query(route, scope["query_string"])
        session = None
        if route.session or (route.session_if_query is not None and route.session_if_query in query):
            session = await self._find_session(scope)
            if session is None:
                return responses.invalid_session()
        headers = read_headers(scope["headers"], route.headers) if route.headers else {}
        caller: str = scope[CALLER_KEY]
        if route.form is not None:
            wallet = session.address if session is not None else b""
            async with self._services.upload_reader.open_form(receive, scope["headers"], caller, wallet) as form:
                return await route.handler(Request(caller, path, query, form, session, headers))
        if route.body is None:
            request = Request(caller, path, query, None, session, headers)
            if route.cached_until_next_block and session is None:
                return await self._build_cacheable_response(route, request, scope)
            return await route.handler(request)
        async with self._services.body_budget.open_share(caller) as share:
            raw = await self._services.body_reader.read(receive, scope["headers"], route.body.max_bytes, share)
            body = route.body.read(await parse_body(raw))
            # Free the raw bytes while the handler runs.
            del raw
            return await route.handler(Request(caller, path, query, body, session, headers))

    def _parse_query(self, route: Route, raw: bytes) -> Mapping[str, Any]:
        """Return the parsed query. Results are cached, because pollers repeat their queries."""
        key = (route.method, route.path, raw)
        parsed = self._queries.get(key)
        if parsed is None:
            parsed = read_query(raw, route.query)
            if len(self._queries) >= _MAX_CACHED_QUERIES:
                self._queries.clear()
            if len(raw) <= _MAX_CACHED_QUERY_BYTES:
                self._queries[key] = parsed
        return parsed

    async def _find_session(self, scope: Scope) -> SessionRow | None:
        for name, value in scope["headers"]:
            # HTTP authentication schemes are case-insensitive.
            if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
                return await self._services.find_session(value[len(_BEARER) :].decode("latin-1"))
        return None

    async def _build_cacheable_response(self, route: Route, request: Request, scope: Scope) -> AnyResponse:
        """Return a response that depends only on the index, with an ETag. Cache the response until the next block."""
        response = await route.handler(request)
        if not isinstance(response, Response) or response.status != 200 or response.snapshot is None:
            return response
        target = _request_target(scope)
        cached = with_etag(response, response.snapshot, target, route.path)
        self._services.response_cache.put(target, cached)
        return cached.conditional_response(_if_none_match_header(scope))


def _request_target(scope: Scope) -> bytes:
    target: bytes = scope["raw_path"] + b"?" + scope["query_string"]
    return target


def _if_none_match_header(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            return bytes(value)
    return None
