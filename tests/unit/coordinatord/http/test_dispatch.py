"""Matched routes, and responses that are cached, partial or streamed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from common.daemon.asgi import Message, Scope
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.bodies import BodyBudget, BodyReader
from coordinatord.http.byte_ranges import ByteRange, UnsatisfiableRange, resolve_byte_range
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets
from coordinatord.http.dispatch import Dispatcher, DispatcherServices
from coordinatord.http.matching import Matcher
from coordinatord.http.response_cache import (
    ENTRY_OVERHEAD_BYTES,
    BlockCache,
    CachedResponse,
    etag_of,
    matches_etag,
    with_etag,
)
from coordinatord.http.responses import Response
from coordinatord.http.routing import Form, Request, Route
from coordinatord.http.streaming import ResponseSourceFailed, StreamedResponse, send_streamed_response
from coordinatord.http.uploads import TransferLimits, UploadReader
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.support.fakes.index_position import Standing
from tests.unit.coordinatord.http.asgi import ask, scope


async def _handler(_: Request) -> Response:
    return Response(200, b"")


route_of = partial(Route, id="rows", tag="Rows", about="", replies=())

MATCHER = Matcher(
    [
        route_of(method="GET", path=path, handler=_handler)
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


AT_5, AT_6 = Snapshot(5, b"a", 1), Snapshot(6, b"b", 2)


async def is_ready() -> bool:
    return True


async def session_of(token: str) -> SessionRow:
    return SessionRow(token.encode(), None)


def application(routes: list[Route], position: Standing) -> CallerLimits:
    budget = BodyBudget(1 << 20)
    uploads = UploadReader(budget, TransferLimits(1, 1), max_bytes=1000, min_bytes_per_s=1, stall_timeout_s=1)
    services = DispatcherServices(is_ready, session_of, BodyReader(60, 1), budget, uploads, BlockCache(position))
    return CallerLimits(Dispatcher(routes, services), TokenBuckets(1e9, 1e9), frozenset())


@pytest.mark.parametrize(("written", "is_read_again"), [(200, True), (409, False)])
async def test_read_after_a_write_is_not_answered_from_before_it(written: int, is_read_again: bool) -> None:
    reads = 0

    async def read(_: Request) -> Response:
        nonlocal reads
        reads += 1
        return Response(200, b"{}", snapshot=AT_5)

    async def write(_: Request) -> Response:
        return Response(written, b"{}")

    routes = [
        route_of(method="GET", path="/rows", handler=read, index_backed=True),
        route_of(method="POST", path="/rows", handler=write),
    ]
    app = application(routes, Standing(AT_6, known=AT_5))  # the index advanced after its last read
    for method in ("GET", "GET", "POST", "GET"):
        await ask(app, scope(method, "/rows"))
    assert reads == (2 if is_read_again else 1)


async def test_uploads_are_counted_by_network_and_wallet() -> None:
    statuses: list[int] = []

    def upload(client: str, wallet: str) -> Scope:
        kind = "multipart/form-data; boundary=b"
        return scope("POST", "/files", client, content_type=kind, authorization=f"Bearer {wallet}")

    async def receive(_: Request) -> Response:
        if not statuses:
            statuses.append(0)
            others = (("2001:db8:1:2:ffff::2", "two"), ("2001:db8:1:3::1", "one"), ("2001:db8:1:3::1", "two"))
            for client, wallet in others:
                statuses.append((await ask(app, upload(client, wallet))).status)
        return Response(200, b"{}")

    route = route_of(method="POST", path="/files", handler=receive, form=Form({}, ()), session=True)
    app = application([route], Standing(AT_5))
    await ask(app, upload("2001:db8:1:2::1", "one"))
    assert statuses == [0, 429, 429, 200]


AT_5, AT_5_FORKED, AT_6 = Snapshot(5, b"a", 1), Snapshot(5, b"b", 1), Snapshot(6, b"c", 2)


def kept(target: bytes, body: bytes = b"page") -> CachedResponse:
    return with_etag(Response(200, body, snapshot=AT_5), AT_5, target, "/x")


@pytest.mark.parametrize("moved", [AT_6, AT_5_FORKED], ids=["next block", "other block of the same height"])
@pytest.mark.parametrize("known", [True, False])
async def test_kept_answer_serves_until_the_index_moves(known: bool, moved: Snapshot) -> None:
    position = Standing(AT_5)
    cache = BlockCache(position)
    page = kept(b"/x?")
    cache.put(b"/x?", page)
    assert await cache.get(b"/x?") is page
    assert await cache.get(b"/x?limit=1") is None
    position.now, position.known = moved, moved if known else None
    assert await cache.get(b"/x?") is None


async def test_position_of_a_moment_ago_serves_without_a_question() -> None:
    cache = BlockCache(Standing(AT_6, known=AT_5))
    page = kept(b"/x?")
    cache.put(b"/x?", page)
    assert await cache.get(b"/x?") is page


async def test_stale_cache_is_not_served_after_a_reported_change() -> None:
    cache = BlockCache(Standing(AT_6, known=AT_5))
    cache.put(b"/x?", kept(b"/x?"))
    cache.forget_position()
    assert await cache.get(b"/x?") is None


async def test_least_recently_used_answers_make_room() -> None:
    cache = BlockCache(Standing(AT_5), max_bytes=2 * (ENTRY_OVERHEAD_BYTES + 5))
    for target in (b"1", b"2"):
        cache.put(target, kept(target, b"12345"))
    assert await cache.get(b"1") is not None
    cache.put(b"3", kept(b"3", b"12345"))
    assert await cache.get(b"2") is None
    assert await cache.get(b"1") is not None


def test_etag_depends_on_position_fork_and_target() -> None:
    tags = {etag_of(at, target) for at in (AT_5, AT_5_FORKED, AT_6) for target in (b"/a?", b"/a?b=1")}
    assert len(tags) == 6


def test_if_none_match_is_read_as_a_list() -> None:
    etag = etag_of(AT_5, b"/a?")
    assert matches_etag(b'"x", W/' + etag, etag)
    assert matches_etag(b"*", etag)
    assert not matches_etag(b'"x"', etag)


@pytest.mark.parametrize(
    ("header", "stretch"),
    [
        ("bytes=0-0", (0, 0)),
        ("bytes=2-", (2, 9)),
        ("bytes=2-5", (2, 5)),
        ("bytes=2-99", (2, 9)),
        ("bytes=-3", (7, 9)),
        ("bytes=-99", (0, 9)),
        (None, None),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("bytes=١-", None),
        ("items=0-1", None),
    ],
)
def test_single_range_is_clipped_and_others_are_ignored(header: str | None, stretch: tuple[int, int] | None) -> None:
    assert resolve_byte_range(header, 10) == (None if stretch is None else ByteRange(*stretch))


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=-5", 0), ("bytes=0-", 0)]
)
def test_range_outside_of_the_content_is_unsatisfiable(header: str, size: int) -> None:
    with pytest.raises(UnsatisfiableRange):
        resolve_byte_range(header, size)


async def staying() -> Message:
    await anyio.sleep_forever()
    raise AssertionError("the client stays")


@asynccontextmanager
async def failing_after(pieces: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield a store's content that fails after this many pieces. Like `StoreRequests.stream`, closing the content
    raises Retryable."""

    async def read() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b"piece"
        raise OSError("connection reset")

    try:
        yield read()
    except OSError as error:
        raise Retryable("store_unavailable", str(error)) from error


@pytest.mark.parametrize("pieces", [0, 1])
async def test_store_failure_after_the_head_cuts_the_answer_short(pieces: int) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(ResponseSourceFailed, match="connection reset"):
        await send_streamed_response(staying, send, StreamedResponse(200, (), 10, lambda: failing_after(pieces)))
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * pieces]


async def test_failure_to_open_the_content_is_answered_instead() -> None:
    @asynccontextmanager
    async def missing() -> AsyncIterator[AsyncIterator[bytes]]:
        raise Retryable("object_missing", "lost")
        yield  # makes this function a generator

    async def send(message: Message) -> None:
        raise AssertionError(f"nothing is sent: {message}")

    with pytest.raises(Retryable, match="lost"):
        await send_streamed_response(staying, send, StreamedResponse(200, (), 10, missing))
