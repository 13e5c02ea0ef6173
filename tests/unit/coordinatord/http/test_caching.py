import pytest

from coordinatord.http.response_cache import (
    ENTRY_OVERHEAD_BYTES,
    BlockCache,
    CachedResponse,
    etag_of,
    matches_etag,
    with_etag,
)
from coordinatord.http.responses import Response
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.support.fakes.index_position import Standing

pytestmark = pytest.mark.anyio
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
