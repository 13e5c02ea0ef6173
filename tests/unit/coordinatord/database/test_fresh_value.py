import anyio
import attrs
import pytest

from coordinatord.database.batched_reads import RECENT, FreshValue, Snapshot
from coordinatord.database.connections import PreparedConnection

pytestmark = pytest.mark.anyio

NO_LINE: PreparedConnection = None  # type: ignore[assignment] # handed through and never looked at
AT_5, AT_6 = Snapshot(5, b"a", 1), Snapshot(6, b"b", 2)


@attrs.define
class Index:
    stands: Snapshot = AT_5
    clock: float = 100.0
    asked: int = 0
    trouble: Exception | None = None

    async def read(self, _: PreparedConnection) -> Snapshot:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return self.stands

    def position(self) -> FreshValue[Snapshot]:
        return FreshValue(NO_LINE, self.read, lambda: self.clock)


async def renewed() -> None:
    for _ in range(5):  # turns of the loop: nobody waits for what is asked in between
        await anyio.lowlevel.checkpoint()


async def test_position_is_known_for_a_moment_after_it_was_asked_for() -> None:
    index = Index()
    position = index.position()
    assert position.recent() is None
    assert await position.get() == AT_5
    index.stands = AT_6
    index.clock += 0.4 * RECENT
    assert position.recent() == AT_5
    index.clock += 0.7 * RECENT
    assert position.recent() is None
    assert index.asked == 1


async def test_position_that_is_forgotten_is_asked_for_again_and_so_is_one_under_way_then() -> None:
    index = Index()
    position = index.position()
    await position.get()
    index.clock += 0.8 * RECENT
    assert position.recent() == AT_5
    position.forget()  # while it is renewed, and that question may have been answered before
    await renewed()
    assert position.recent() is None
    index.clock += 0.1 * RECENT
    assert await position.lately() == AT_5
    assert position.recent() == AT_5


async def test_position_that_ages_is_asked_for_before_it_is_too_old() -> None:
    index = Index()
    position = index.position()
    await position.get()
    index.stands = AT_6
    index.clock += 0.8 * RECENT
    assert position.recent() == AT_5
    await renewed()
    assert position.recent() == AT_6
    assert index.asked == 2


async def test_position_that_may_be_older_is_asked_for_less_often() -> None:
    index = Index()
    position = index.position()
    assert await position.lately(5 * RECENT) == AT_5
    index.stands = AT_6
    index.clock += 2 * RECENT
    assert await position.lately(5 * RECENT) == AT_5
    await renewed()
    assert index.asked == 1
    assert await position.lately() == AT_6


async def test_question_that_fails_leaves_the_position_to_grow_too_old() -> None:
    index = Index()
    position = index.position()
    await position.get()
    index.trouble = OSError("gone")
    index.clock += 0.8 * RECENT
    assert position.recent() == AT_5
    await renewed()
    index.clock += 0.5 * RECENT
    assert position.recent() is None
    with pytest.raises(OSError, match="gone"):
        await position.get()


async def test_position_that_another_read_brings_along_needs_no_question_of_its_own() -> None:
    index = Index()
    position = index.position()
    learn = position.asking()
    index.clock += 0.4 * RECENT
    learn(AT_5)
    assert position.recent() == AT_5
    index.clock += 0.7 * RECENT  # its age is counted from when it was asked for
    assert position.recent() is None
    assert index.asked == 0


async def test_position_that_was_asked_for_earlier_and_comes_later_is_not_taken() -> None:
    index = Index()
    position = index.position()
    earlier = position.asking()
    index.clock += 0.1 * RECENT
    later = position.asking()
    later(AT_6)
    earlier(AT_5)
    assert position.recent() == AT_6


async def test_position_that_was_asked_for_before_it_was_forgotten_is_not_recent() -> None:
    index = Index()
    position = index.position()
    learn = position.asking()
    index.clock += 0.1 * RECENT
    position.forget()
    learn(AT_5)
    assert position.recent() is None
