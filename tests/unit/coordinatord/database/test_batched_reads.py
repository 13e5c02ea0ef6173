import anyio
import pytest

from coordinatord.database.batched_reads import BatchedReads
from coordinatord.database.connections import PreparedConnection

pytestmark = pytest.mark.anyio


class Table:
    """Answers reads when told to, and counts them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = anyio.Event()

    async def read(self, _: PreparedConnection, keys: list[int]) -> dict[int, str]:
        self.batches.append(keys)
        await self.open.wait()
        if 13 in keys:
            raise RuntimeError("unlucky")
        return {key: str(key) for key in keys}


async def _gathered(table: Table, reads: BatchedReads[int, str], keys: list[int]) -> list[str | Exception]:
    answers: list[str | Exception] = []

    async def get(key: int) -> None:
        try:
            answers.append(await reads.get(key))
        except RuntimeError as trouble:
            answers.append(trouble)

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(get, key)
            await anyio.wait_all_tasks_blocked()
        table.open.set()
    return answers


@pytest.fixture
def table() -> Table:
    return Table()


async def test_keys_that_come_while_a_read_runs_share_the_next_one(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    assert await _gathered(table, reads, [1, 2, 3, 2]) == ["1", "2", "2", "3"]
    assert table.batches == [[1], [2, 3]]


async def test_reads_run_at_once_as_far_as_allowed_and_take_no_more_keys_than_the_most(
    line: PreparedConnection, table: Table
) -> None:
    reads = BatchedReads(line, table.read, at_once=2, most=2)
    assert sorted(map(str, await _gathered(table, reads, [1, 2, 3, 4, 5]))) == ["1", "2", "3", "4", "5"]
    assert table.batches == [[1], [2], [3, 4], [5]]


async def test_failed_read_fails_for_those_in_it_and_the_next_goes_on(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    answers = await _gathered(table, reads, [13])
    assert isinstance(answers[0], RuntimeError)
    assert await reads.get(1) == "1"


async def test_caller_who_is_cancelled_takes_nobody_along(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.01):
            await reads.get(1)
        tasks.start_soon(reads.get, 1)
        await anyio.wait_all_tasks_blocked()
        table.open.set()


@pytest.fixture
def line() -> PreparedConnection:
    return None  # type: ignore[return-value] # handed through and never looked at
