"""Whether the primary or a standby answers a read, and how long a failing standby is left out."""

from collections.abc import Callable

import attrs
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.replicas import IndexSource, Replica
from coordinatord.storage.database.snapshot_sql import Snapshot

pytestmark = pytest.mark.anyio

THEN, NOW = Snapshot(7, b"7", 70), Snapshot(8, b"8", 80)
FORKED = Snapshot(8, b"another", 80)


@attrs.define
class Position:
    """The index's position on the primary. `lately`: the last position that was read."""

    lately: Snapshot | None = NOW
    present: Snapshot = NOW
    learned: list[Snapshot] = attrs.field(factory=list)

    def recent_value(self) -> Snapshot | None:
        return self.lately

    async def get(self) -> Snapshot:
        self.lately = self.present
        return self.present

    def begin_read(self) -> Callable[[Snapshot], None]:
        return self.learned.append


@attrs.define
class Place:
    answers: dict[str, Snapshot | Exception]
    position: Position = attrs.field(factory=Position)
    asked: list[str] = attrs.field(factory=list)
    now: float = 100.0

    def source(self, copies: int = 1) -> IndexSource[str]:
        replicas = [
            Replica(f"r{n}", None, lambda: self.now)  # type: ignore[arg-type] # its pool is not asked here
            for n in range(copies)
        ]
        return IndexSource("primary", [(replica, replica.name) for replica in replicas], self.position)  # type: ignore[arg-type]

    async def ask(self, source: str) -> tuple[Snapshot, str]:
        self.asked.append(source)
        answer = self.answers.get(source, NOW)
        if isinstance(answer, Exception):
            raise answer
        return answer, source


async def test_standbys_at_the_head_take_turns() -> None:
    place = Place({})
    source = place.source(2)
    assert [(await source.read(place.ask))[1] for _ in range(4)] == ["r0", "r1", "r0", "r1"]


@pytest.mark.parametrize("told", [THEN, FORKED], ids=["behind", "another branch"])
async def test_an_answer_of_another_block_is_not_taken(told: Snapshot) -> None:
    place = Place({"r0": told})
    assert await place.source().read(place.ask) == (NOW, "primary")
    assert place.asked == ["r0", "primary"]


async def test_position_is_learned_only_from_the_primary() -> None:
    place = Place({"r0": THEN})
    source = place.source()
    await source.read(place.ask)
    place.answers["r0"] = NOW
    await source.read(place.ask)
    assert place.asked == ["r0", "primary", "primary"]  # r0 is left out after its stale answer
    place.now += 60
    await source.read(place.ask)
    assert place.asked[-1] == "r0"
    assert place.position.learned == [NOW, NOW]


async def test_standby_ahead_is_believed_if_the_primary_agrees() -> None:
    place = Place({}, Position(lately=THEN))
    assert await place.source().read(place.ask) == (NOW, "r0")
    unknown = Place({}, Position(lately=None))
    assert await unknown.source().read(unknown.ask) == (NOW, "r0")


async def test_lagging_standby_is_asked_less_until_it_catches_up() -> None:
    place = Place({"r0": THEN})
    source = place.source()
    for _ in range(600):
        await source.read(place.ask)
        place.now += 0.1
    assert 9 <= place.asked.count("r0") <= 14  # of sixty seconds
    place.answers["r0"] = NOW
    place.now += 15
    assert (await source.read(place.ask))[1] == "r0"
    assert (await source.read(place.ask))[1] == "r0"


@pytest.mark.parametrize("error", [Retryable("not_ready", "away"), ConnectionRefusedError(), ValueError("a dsn")])
async def test_a_standby_that_fails_leaves_the_answer_to_the_primary(error: Exception) -> None:
    place = Place({"r0": error})
    source = place.source()
    assert [(await source.read(place.ask))[1] for _ in range(3)] == ["primary"] * 3
    assert place.asked.count("r0") == 1  # r0 is still left out


async def test_error_of_the_primary_is_raised() -> None:
    place = Place({"r0": THEN, "primary": Retryable("not_ready", "away")})
    with pytest.raises(Retryable):
        await place.source().read(place.ask)
