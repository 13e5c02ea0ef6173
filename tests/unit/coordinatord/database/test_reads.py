"""Reads of the database: batched, recent, and from the primary or a standby."""

from collections.abc import Callable

import anyio
import attrs
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.fresh_value import MAX_AGE_S, FreshValue
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.replicas import IndexSource, Replica
from coordinatord.storage.database.snapshot_sql import Snapshot

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
    return None  # type: ignore[return-value] # passed on and never used


NO_LINE: PreparedConnection = None  # type: ignore[assignment] # passed on and never used
AT_5, AT_6 = Snapshot(5, b"a", 1), Snapshot(6, b"b", 2)


@attrs.define
class FakeIndex:
    """Index with a scripted position. `reads` counts the reads of its position."""

    newest: Snapshot = AT_5
    clock: float = 100.0
    reads: int = 0

    async def read(self, _: PreparedConnection) -> Snapshot:
        self.reads += 1
        return self.newest

    def position(self) -> FreshValue[Snapshot]:
        return FreshValue(NO_LINE, self.read, lambda: self.clock)


async def test_position_is_known_briefly_after_a_read() -> None:
    index = FakeIndex()
    position = index.position()
    assert position.recent_value() is None
    assert await position.get() == AT_5
    index.newest = AT_6
    index.clock += 0.4 * MAX_AGE_S
    assert position.recent_value() == AT_5
    index.clock += 0.7 * MAX_AGE_S
    assert position.recent_value() is None
    assert index.reads == 1


async def test_forgotten_position_is_read_again() -> None:
    index = FakeIndex()
    position = index.position()
    await position.get()
    position.invalidate()
    assert position.recent_value() is None
    index.clock += 0.1 * MAX_AGE_S
    assert await position.get_recent() == AT_5
    assert position.recent_value() == AT_5


async def test_tolerant_reader_queries_less_often() -> None:
    index = FakeIndex()
    position = index.position()
    assert await position.get_recent(5 * MAX_AGE_S) == AT_5
    index.newest = AT_6
    index.clock += 2 * MAX_AGE_S
    assert await position.get_recent(5 * MAX_AGE_S) == AT_5
    assert index.reads == 1
    assert await position.get_recent() == AT_6


async def test_position_from_another_read_needs_no_query() -> None:
    index = FakeIndex()
    position = index.position()
    learn = position.begin_read()
    index.clock += 0.4 * MAX_AGE_S
    learn(AT_5)
    assert position.recent_value() == AT_5
    index.clock += 0.7 * MAX_AGE_S  # the age counts from the start of the request
    assert position.recent_value() is None
    assert index.reads == 0


async def test_late_answer_of_an_earlier_request_is_ignored() -> None:
    index = FakeIndex()
    position = index.position()
    earlier = position.begin_read()
    index.clock += 0.1 * MAX_AGE_S
    later = position.begin_read()
    later(AT_6)
    earlier(AT_5)
    assert position.recent_value() == AT_6


async def test_position_requested_before_a_reset_is_not_recent() -> None:
    index = FakeIndex()
    position = index.position()
    learn = position.begin_read()
    index.clock += 0.1 * MAX_AGE_S
    position.invalidate()
    learn(AT_5)
    assert position.recent_value() is None


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
class FakeReplication:
    """Primary and replicas with scripted answers, by database name. `reads` lists the databases that were read."""

    answers: dict[str, Snapshot | Exception]
    position: Position = attrs.field(factory=Position)
    reads: list[str] = attrs.field(factory=list)
    now: float = 100.0

    def index_source(self, replicas: int = 1) -> IndexSource[str]:
        opened = [
            Replica(f"r{n}", None, lambda: self.now)  # type: ignore[arg-type] # the pool is never used
            for n in range(replicas)
        ]
        return IndexSource("primary", [(replica, replica.name) for replica in opened], self.position)  # type: ignore[arg-type]

    async def read_from(self, database: str) -> tuple[Snapshot, str]:
        self.reads.append(database)
        answer = self.answers.get(database, NOW)
        if isinstance(answer, Exception):
            raise answer
        return answer, database


async def test_standbys_at_the_head_take_turns() -> None:
    replication = FakeReplication({})
    source = replication.index_source(2)
    assert [(await source.read(replication.read_from))[1] for _ in range(4)] == ["r0", "r1", "r0", "r1"]


@pytest.mark.parametrize("told", [THEN, FORKED], ids=["behind", "another branch"])
async def test_an_answer_of_another_block_is_not_taken(told: Snapshot) -> None:
    replication = FakeReplication({"r0": told})
    assert await replication.index_source().read(replication.read_from) == (NOW, "primary")
    assert replication.reads == ["r0", "primary"]


async def test_position_is_learned_only_from_the_primary() -> None:
    replication = FakeReplication({"r0": THEN})
    source = replication.index_source()
    await source.read(replication.read_from)
    replication.answers["r0"] = NOW
    await source.read(replication.read_from)
    assert replication.reads == ["r0", "primary", "primary"]  # r0 is left out after its stale answer
    replication.now += 60
    await source.read(replication.read_from)
    assert replication.reads[-1] == "r0"
    assert replication.position.learned == [NOW, NOW]


async def test_standby_ahead_is_believed_if_the_primary_agrees() -> None:
    replication = FakeReplication({}, Position(lately=THEN))
    assert await replication.index_source().read(replication.read_from) == (NOW, "r0")
    unknown = FakeReplication({}, Position(lately=None))
    assert await unknown.index_source().read(unknown.read_from) == (NOW, "r0")


async def test_lagging_standby_is_asked_less_until_it_catches_up() -> None:
    replication = FakeReplication({"r0": THEN})
    source = replication.index_source()
    for _ in range(600):
        await source.read(replication.read_from)
        replication.now += 0.1
    assert 9 <= replication.reads.count("r0") <= 14  # of sixty seconds
    replication.answers["r0"] = NOW
    replication.now += 15
    assert (await source.read(replication.read_from))[1] == "r0"
    assert (await source.read(replication.read_from))[1] == "r0"


@pytest.mark.parametrize("error", [Retryable("not_ready", "away"), ConnectionRefusedError(), ValueError("a dsn")])
async def test_a_standby_that_fails_leaves_the_answer_to_the_primary(error: Exception) -> None:
    replication = FakeReplication({"r0": error})
    source = replication.index_source()
    assert [(await source.read(replication.read_from))[1] for _ in range(3)] == ["primary"] * 3
    assert replication.reads.count("r0") == 1  # r0 is still left out


async def test_error_of_the_primary_is_raised() -> None:
    replication = FakeReplication({"r0": THEN, "primary": Retryable("not_ready", "away")})
    with pytest.raises(Retryable):
        await replication.index_source().read(replication.read_from)
