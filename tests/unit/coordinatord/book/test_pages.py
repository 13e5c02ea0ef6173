"""Responses of the book: evidence as published, and pages that cost their caller tokens."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import msgspec
import pytest

from coordinatord.api.book import bodies as routes
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.registries_sql import ProviderRow
from coordinatord.api.book.reliability_sql import ReliabilityRow
from coordinatord.api.book.routes import BookRoutes
from coordinatord.http.caller_limits import TokenBuckets
from coordinatord.http.responses import Response
from coordinatord.http.routing import Request
from coordinatord.storage.database.snapshot_sql import Snapshot


def provider_with(evidence: bytes) -> ProviderRow:
    return ProviderRow(
        provider_id=1,
        operator=bytes(20),
        box_key=None,
        evidence=evidence,
        listed=True,
        reputation=500,
        allow_all_models=True,
        allowed_models=[],
        capacity=1,
        active_jobs=0,
        requested=1,
        reliability=ReliabilityRow(0, 0, 0, None, None),
    )


@pytest.mark.parametrize(
    ("published", "shown"),
    [
        (b"", None),
        (b"null", None),
        (b'{"kind":"test"}', {"kind": "test"}),
        (b"no JSON", "0x6e6f204a534f4e"),
        (b'{"a":1,"a":2}', "0x7b2261223a312c2261223a327d"),
    ],
    ids=["nothing", "null", "JSON", "bytes", "JSON of two meanings"],
)
def test_evidence_is_shown_as_its_json_or_its_bytes(published: bytes, shown: object) -> None:
    assert routes.provider_shape(provider_with(published)).evidence == shown


def test_announced_bundles_are_shown() -> None:
    announced = msgspec.to_builtins(routes.provider_shape(provider_with(b'{"svc_bundle":{"v":1,"items":200}}')))
    assert announced["largest_bundle"] == 200
    assert "largest_bundle" not in msgspec.to_builtins(routes.provider_shape(provider_with(b'{"kind":"test"}')))


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
