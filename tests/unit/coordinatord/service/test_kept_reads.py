import attrs
import pytest

from coordinatord.service.kept_reads import RECENT, KeptReads
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import Snapshot

pytestmark = pytest.mark.anyio

NO_LINE: Line = None  # type: ignore[assignment] # handed through and never looked at
AT = [Snapshot(n, bytes([n]), n) for n in range(4)]


@attrs.define
class Table:
    """Rows that say at which block they were read. `moves`: it stands a block further after each read."""

    block: int = 0
    moves: bool = False
    asked: list[list[int]] = attrs.field(factory=list)

    async def read(self, _: Line, keys: list[int]) -> tuple[Snapshot, dict[int, str]]:
        self.asked.append(keys)
        snapshot = AT[self.block]
        self.block += self.moves
        return snapshot, {key: f"{key} at {snapshot.block_number}" for key in keys if key < 100}


async def test_row_is_read_once_while_the_index_stands_still_and_its_place_every_time() -> None:
    table = Table()
    read = KeptReads(table.read)
    first = await read(NO_LINE, [1, 2])
    second = await read(NO_LINE, [2, 3])
    assert table.asked == [[1, 2], [3]]
    assert second[2] is first[2]
    assert second[3].value == "3 at 0"
    await read(NO_LINE, [1, 2, 3])
    assert table.asked[-1] == []


async def test_row_is_read_again_once_the_index_has_moved() -> None:
    table = Table()
    read = KeptReads(table.read)
    await read(NO_LINE, [1, 2])
    table.block = 1
    found = await read(NO_LINE, [2, 3])
    assert {key: (one.value, one.snapshot) for key, one in found.items()} == {
        2: ("2 at 1", AT[1]),
        3: ("3 at 1", AT[1]),
    }


async def test_answers_are_of_one_snapshot_though_the_index_moves_during_each_read() -> None:
    table = Table(moves=True)
    read = KeptReads(table.read)
    await read(NO_LINE, [1])
    found = await read(NO_LINE, [1, 2])
    assert {one.snapshot for one in found.values()} == {AT[2]}
    assert [one.value for one in found.values()] == ["1 at 2", "2 at 2"]


async def test_key_that_names_nothing_is_answered_and_not_kept() -> None:
    table = Table()
    read = KeptReads(table.read)
    for _ in range(2):
        assert (await read(NO_LINE, [100]))[100].value is None
    assert table.asked == [[100], [100]]


async def test_row_is_at_hand_for_some_milliseconds_after_the_question_that_brought_it() -> None:
    table, now = Table(), 100.0
    read = KeptReads(table.read, clock=lambda: now)
    assert read.at_hand(1) is None
    found = await read(NO_LINE, [1])
    now += 0.9 * RECENT
    assert read.at_hand(1) is found[1]
    assert read.at_hand(2) is None
    now += 0.2 * RECENT
    assert read.at_hand(1) is None
    await read(NO_LINE, [])
    assert read.at_hand(1) is found[1]


async def test_no_more_rows_are_kept_than_allowed() -> None:
    table = Table()
    read = KeptReads(table.read, most=3)
    await read(NO_LINE, [1, 2, 3])
    found = await read(NO_LINE, [3, 4])
    assert [found[key].value for key in (3, 4)] == ["3 at 0", "4 at 0"]
    await read(NO_LINE, [1, 4])
    assert table.asked == [[1, 2, 3], [4], [1]]


async def test_what_is_made_of_a_row_is_made_once() -> None:
    made: list[str] = []

    def make(value: str, snapshot: Snapshot) -> str:
        made.append(value)
        return f"{value}, {snapshot.block_number}"

    read = KeptReads(Table().read)
    for _ in range(2):
        assert (await read(NO_LINE, [1]))[1].made_once(make) == "1 at 0, 0"
    assert (await read(NO_LINE, [100]))[100].made_once(make) is None
    assert made == ["1 at 0"]
