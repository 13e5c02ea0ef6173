import anyio
import pytest

from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.prepared import PreparedConnection

pytestmark = pytest.mark.anyio

UNKNOWN = 404  # a key that the table lacks


class Table:
    """A table that answers reads when released, and counts them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = anyio.Event()

    async def read(self, _: PreparedConnection, keys: list[int]) -> dict[int, str]:
        self.batches.append(keys)
        await self.open.wait()
        if 13 in keys:
            raise RuntimeError("unlucky")
        return {key: str(key) for key in keys if key != UNKNOWN}


async def _gathered(table: Table, reads: BatchedReads[int, str], keys: list[int]) -> list[str | Exception]:
    answers: list[str | Exception] = []

    async def get(key: int) -> None:
        try:
            answers.append(await reads.get(key))
        except (RuntimeError, LookupError) as trouble:
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


async def test_concurrent_reads_and_batch_size_are_limited(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read, concurrency=2, max_keys=2)
    assert sorted(map(str, await _gathered(table, reads, [1, 2, 3, 4, 5]))) == ["1", "2", "3", "4", "5"]
    assert table.batches == [[1], [2], [3, 4], [5]]


async def test_failed_read_fails_its_waiters_only(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    answers = await _gathered(table, reads, [13])
    assert isinstance(answers[0], RuntimeError)
    assert await reads.get(1) == "1"


async def test_omitted_key_is_an_error_for_its_callers(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    with anyio.fail_after(5):
        answers = await _gathered(table, reads, [1, UNKNOWN, 2, UNKNOWN])
        assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [LookupError] * 2
        assert {answer for answer in answers if isinstance(answer, str)} == {"1", "2"}
        with pytest.raises(LookupError, match="404"):
            await reads.get(UNKNOWN)


async def test_reads_start_no_task(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    async with anyio.create_task_group() as tasks:
        before = len(anyio.get_running_tasks())
        for key in range(3):
            tasks.start_soon(reads.get, key)
        await anyio.wait_all_tasks_blocked()
        assert len(anyio.get_running_tasks()) == before + 3
        table.open.set()


async def test_cancelled_reader_leaves_its_batch_to_the_next(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    answers: list[str] = []
    reading, chosen = anyio.CancelScope(), anyio.CancelScope()

    async def get(key: int, scope: anyio.CancelScope) -> None:
        with scope:
            answers.append(await reads.get(key))

    async with anyio.create_task_group() as tasks:
        for key, scope in ((1, reading), (2, chosen), (1, anyio.CancelScope()), (3, anyio.CancelScope())):
            tasks.start_soon(get, key, scope)
            await anyio.wait_all_tasks_blocked()
        reading.cancel()
        await anyio.wait_all_tasks_blocked()
        chosen.cancel()  # the next reader takes over
        await anyio.wait_all_tasks_blocked()
        table.open.set()
    assert sorted(answers) == ["1", "3"]


async def test_cancelled_caller_cancels_no_other(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    answers: list[str] = []
    leaving = anyio.CancelScope()

    async def leave() -> None:
        with leaving:
            await reads.get(2)

    async def get(key: int) -> None:
        answers.append(await reads.get(key))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(get, 1)
        await anyio.wait_all_tasks_blocked()
        for act in (leave, lambda: get(2)):
            tasks.start_soon(act)
            await anyio.wait_all_tasks_blocked()
        leaving.cancel()
        await anyio.wait_all_tasks_blocked()
        table.open.set()
    assert answers == ["1", "2"]


async def test_key_whose_callers_left_is_not_read(line: PreparedConnection, table: Table) -> None:
    reads = BatchedReads(line, table.read)
    async with anyio.create_task_group() as tasks:
        leaving = anyio.CancelScope()

        async def leave() -> None:
            with leaving:
                await reads.get(2)

        for act in (lambda: reads.get(1), leave, lambda: reads.get(3)):
            tasks.start_soon(act)
            await anyio.wait_all_tasks_blocked()
        leaving.cancel()
        await anyio.wait_all_tasks_blocked()
        table.open.set()
    assert table.batches == [[1], [3]]


@pytest.fixture
def line() -> PreparedConnection:
    return None  # type: ignore[return-value] # handed through and never looked at
