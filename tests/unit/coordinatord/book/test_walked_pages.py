"""A page for which PostgreSQL walks a list counts against the caller's limit by the time that it takes."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.routes import BookRoutes
from coordinatord.http.caller_limits import TokenBuckets
from coordinatord.http.responses import Response
from coordinatord.http.routing import Request
from coordinatord.storage.database.snapshot_sql import Snapshot

pytestmark = pytest.mark.anyio

BURST = 100
CALLER = "192.0.2.1"


@attrs.define
class SlowLists:
    """An index that takes 0.3 s for each page."""

    now: float = 0.0

    async def read(self, _: Callable[[Any], Awaitable[Any]]) -> tuple[Snapshot, list[Any]]:
        self.now += 0.3
        return Snapshot(7, b"\x07", 700), []


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ({}, BURST),
        ({"state": "Open", "model": 1, "posted_before": 9, "order": "newest", "offset": 900_000}, BURST),
        ({"min_rate_in": 5}, BURST - 30),
        ({"owner": b"\x01" * 20, "model": 1, "offset": 900_000}, BURST - 30),
    ],
)
async def test_walked_page_costs_its_caller_tokens(query: dict[str, Any], left: int) -> None:
    lists = SlowLists()
    unused: Any = None
    sources: Any = lists
    buckets = TokenBuckets(0.001, BURST, lambda: 0.0)
    reads = IndexReads(unused, unused, unused, unused, unused, sources)
    routes = BookRoutes(reads, unused, unused, buckets, lambda: lists.now)
    assert isinstance(await routes.list_jobs(Request(CALLER, {}, query, None, None)), Response)
    assert buckets.take_or_get_wait_s(CALLER, left - 0.5) == 0.0
    assert buckets.take_or_get_wait_s(CALLER, 1) > 0
