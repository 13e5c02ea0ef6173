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
from coordinatord.http.streaming import HeldResponse, StreamedResponse, hold_response, send_streamed
from coordinatord.http.uploads import UploadReader

_BEARER: Final = b"bearer "
# The whole cache of parsed queries is cleared when it holds this many queries.
_MAX_CACHED_QUERIES: Final = 4096
# Longer queries are not cached.
_MAX_CACHED_QUERY_BYTES: Final = 256


@attrs.frozen(slots=True)
class Gates:
    """Services that run before a request's handler: readiness, sessions, body limits and the cache."""

    is_ready: Callable[[], Awaitable[bool]]
    find_session: Callable[[str], Awaitable[SessionRow | None]]
    bodies: BodyReader
    budget: BodyBudget
    uploads: UploadReader
    cache: BlockCache


class Dispatcher:
    def __init__(self, routes: list[Route], gates: Gates) -> None:
        self._matcher = Matcher(routes)
        self._gates = gates
        self._queries: dict[tuple[str, str, bytes], Mapping[str, Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer_request(scope, receive)
            if isinstance(answer, StreamedResponse):
                begun = time.perf_counter()
                try:
                    await send_streamed(receive, send, answer, with_body=scope["method"] != "HEAD")
                finally:
                    # Leave the duration of an endless stream out of the response times.
                    if answer.length is None:
                        scope[UNTIMED_KEY] = time.perf_counter() - begun
                return
            if isinstance(answer, HeldResponse):
                answer, scope[UNTIMED_KEY] = await hold_response(receive, answer)
        except Refused as refusal:
            answer = responses.refused(refusal)
        except Retryable as cause:
            answer = responses.retry_later(cause)
        except UnacceptableBody as body:
            answer = body.answer
        await send_response(send, answer, with_body=scope["method"] != "HEAD")

    async def _answer_request(self, scope: Scope, receive: Receive) -> AnyResponse:
        method = scope["method"]
        if method in ("GET", "HEAD"):
            kept = await self._gates.cache.get(_request_target(scope))
            if kept is not None:
                scope[ROUTE_KEY] = kept.route
                await self._require_index()
                return kept.conditional_response(_if_none_match(scope))
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
        answer = await self._run_route(route, match.texts, scope, receive)
        if method in ("POST", "PUT", "DELETE") and not isinstance(answer, HeldResponse) and answer.status < 300:
            self._gates.cache.forget_position()
        return answer

    async def _require_index(self) -> None:
        if not await self._gates.is_ready():
            raise Retryable("not_ready", "the index is catching up with the chain", retry_after=1)

    async def _run_route(self, route: Route, texts: dict[str, str], scope: Scope, receive: Receive) -> AnyResponse:
        path: dict[str, Any] = {name: one.kind.read(texts[name], name) for name, one in route.segments.items()}
        query = self._parse_query(route, scope["query_string"])
        session = None
        if route.session or (route.session_with is not None and route.session_with in query):
            session = await self._find_session(scope)
            if session is None:
                return responses.invalid_session()
        headers = read_headers(scope["headers"], route.headers) if route.headers else {}
        caller: str = scope[CALLER_KEY]
        if route.form is not None:
            wallet = session.address if session is not None else b""
            async with self._gates.uploads.open_form(receive, scope["headers"], caller, wallet) as form:
                return await route.handler(Request(caller, path, query, form, session, headers))
        if route.body is None:
            request = Request(caller, path, query, None, session, headers)
            if route.cached_until_next_block and session is None:
                return await self._answer_from_index(route, request, scope)
            return await route.handler(request)
        async with self._gates.budget.open_share(caller) as share:
            raw = await self._gates.bodies.read(receive, scope["headers"], route.body.limit, share)
            body = route.body.read(await parse_body(raw))
            # Free the raw bytes while the handler runs.
            del raw
            return await route.handler(Request(caller, path, query, body, session, headers))

    def _parse_query(self, route: Route, raw: bytes) -> Mapping[str, Any]:
        """Return the parsed query. Results are cached, because pollers repeat their queries."""
        key = (route.method, route.path, raw)
        known = self._queries.get(key)
        if known is None:
            known = read_query(raw, route.query)
            if len(self._queries) >= _MAX_CACHED_QUERIES:
                self._queries.clear()
            if len(raw) <= _MAX_CACHED_QUERY_BYTES:
                self._queries[key] = known
        return known

    async def _find_session(self, scope: Scope) -> SessionRow | None:
        for name, value in scope["headers"]:
            # HTTP authentication schemes are case-insensitive.
            if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
                return await self._gates.find_session(value[len(_BEARER) :].decode("latin-1"))
        return None

    async def _answer_from_index(self, route: Route, request: Request, scope: Scope) -> AnyResponse:
        """Return a response that depends only on the index, with an ETag. Cache the response until the next block."""
        answer = await route.handler(request)
        if not isinstance(answer, Response) or answer.status != 200 or answer.snapshot is None:
            return answer
        target = _request_target(scope)
        kept = with_etag(answer, answer.snapshot, target, route.path)
        self._gates.cache.put(target, kept)
        return kept.conditional_response(_if_none_match(scope))


def _request_target(scope: Scope) -> bytes:
    target: bytes = scope["raw_path"] + b"?" + scope["query_string"]
    return target


def _if_none_match(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            return bytes(value)
    return None
