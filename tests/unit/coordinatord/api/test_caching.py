import pytest

from coordinatord.api.answers import Answer
from coordinatord.api.caching import BlockCache, etag_of, names_etag
from coordinatord.store.snapshot import Snapshot

pytestmark = pytest.mark.anyio
AT_5, AT_5_FORKED, AT_6 = Snapshot(5, b"a", 1), Snapshot(5, b"b", 1), Snapshot(6, b"c", 2)


class Position:
    def __init__(self) -> None:
        self.now = AT_5

    async def __call__(self) -> Snapshot:
        return self.now


@pytest.mark.parametrize("moved", [AT_6, AT_5_FORKED], ids=["next block", "other block of the same height"])
async def test_kept_answer_serves_until_the_index_moves(moved: Snapshot) -> None:
    position = Position()
    cache = BlockCache(position)
    answer = Answer(200, b"page", snapshot=AT_5)
    cache.put(b"/x?", answer)
    assert await cache.get(b"/x?") is answer
    assert await cache.get(b"/x?limit=1") is None
    position.now = moved
    assert await cache.get(b"/x?") is None


async def test_least_recently_used_answers_make_room() -> None:
    cache = BlockCache(Position(), most_bytes=10)
    for target in (b"1", b"2"):
        cache.put(target, Answer(200, b"12345", snapshot=AT_5))
    assert await cache.get(b"1") is not None
    cache.put(b"3", Answer(200, b"12345", snapshot=AT_5))
    assert await cache.get(b"2") is None
    assert await cache.get(b"1") is not None


def test_etag_tells_position_fork_and_target_apart() -> None:
    tags = {etag_of(at, target) for at in (AT_5, AT_5_FORKED, AT_6) for target in (b"/a?", b"/a?b=1")}
    assert len(tags) == 6


def test_if_none_match_is_read_as_a_list() -> None:
    etag = etag_of(AT_5, b"/a?")
    assert names_etag(b'"x", W/' + etag, etag)
    assert names_etag(b"*", etag)
    assert not names_etag(b'"x"', etag)
