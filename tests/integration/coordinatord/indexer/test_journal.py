"""Job rows are read back as they were written. After any blocks and reorgs, also at the edge of the journal, the tables
equal those of a fresh replay."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from coordinatord.base.metrics import REGISTRY
from coordinatord.base.wake import Wake
from coordinatord.chain.indexer.changes import NewJob
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.indexer.tables_sql import write_new_jobs
from coordinatord.chain.indexer.undo_sql import UNDOABLE_TABLES
from coordinatord.storage.database.connections import Connection
from tests.integration.coordinatord.indexer.scene import Rows, forget, index_rows
from tests.support.fakes.chain import CHAIN_ID, DECODER, FakeChain
from tests.support.fakes.history import History

AMOUNTS = (0, 1, 9_999, 10_000, 10_001, 99_990_000, 10**12, 10**16 + 1, 2**64, 2**127, 2**128 - 1)
POSTED = NewJob(
    b"", b"\2" * 20, b"\3" * 32, 5, 60, 1, 2, 3, 2**32 - 1, 7, 2**63 - 1, 7, 65_535, 8, "bafk", b"\4" * 65, 11, 12
)


def numbered(jobs: list[NewJob]) -> list[NewJob]:
    return [replace(job, job_id=bytes([number]) * 32) for number, job in enumerate(jobs)]


async def test_jobs_are_read_back_as_they_were_written(connection: Connection) -> None:
    jobs = numbered(
        [
            *(replace(POSTED, rate_in=a, rate_out=a, cap=a, gas_fee=a) for a in AMOUNTS),
            replace(POSTED, task_cid="tab\there, back\\slash, line\nand é", pay_sig=b""),
            replace(POSTED, state=1, provider_id=9, claimed_at=10),
            *(
                replace(POSTED, state=2, ended_because=1, provider_id=9, claimed_at=10, completion_tok=4, cost=a,
                        result_cid="\ufffd", ended_at=13)
                for a in AMOUNTS
            ),
        ]
    )  # fmt: skip
    await write_new_jobs(connection, jobs, 5)
    rows = await connection.fetch("select * from jobs order by ordinal")
    assert [{name: row[name] for name in asdict(job)} for row, job in zip(rows, jobs, strict=True)] == [
        asdict(job) for job in jobs
    ]
    assert [row["ordinal"] for row in rows] == [*range(5, 5 + len(jobs))]


def follower(source: NodeSource, journal_blocks: int) -> IndexFollower:
    limits = IndexerSettings(
        chain_id=CHAIN_ID,
        deploy_block=1,
        max_range_blocks=5000,
        block_time_ms=10,
        confirmations=0,
        journal_blocks=journal_blocks,
    )
    return IndexFollower(source, limits, Wake())


async def replayed(connection: Connection, source: NodeSource, journal_blocks: int) -> Rows:
    await forget(connection)
    await follower(source, journal_blocks).catch_up(connection)
    return await index_rows(connection)


class IndexedChain:
    """Fake chain with random events, and an index that follows it."""

    def __init__(self, connection: Connection, journal_blocks: int, seed: int = 0) -> None:
        self.chain = FakeChain()
        self.source = NodeSource(self.chain.rpc(), DECODER)
        self.connection = connection
        self._histories = [History(random.Random(seed))]  # noqa: S311 - test data, not keys
        self._indexer: IndexFollower = follower(self.source, journal_blocks)

    async def catch_up(self) -> None:
        await self._indexer.catch_up(self.connection)

    def mine(self, blocks: int) -> None:
        for _ in range(blocks):
            history = self._histories[-1].branch()
            self.chain.mine(*history.block())
            self._histories.append(history)

    async def mine_and_index(self, blocks: int, *, in_one_pass: bool) -> None:
        """Mine blocks. Index them in one pass, or after each block."""
        for n in range(blocks):
            self.mine(1)
            if not in_one_pass or n == blocks - 1:
                await self.catch_up()

    def fork(self, depth: int) -> None:
        """Remove the newest `depth` blocks, so that the next blocks form another branch."""
        height = max(0, self.chain.height - depth)
        self.chain.fork(height)
        del self._histories[height + 1 :]

    async def mine_above(self, height: int) -> None:
        """Mine empty blocks until the chain is higher than `height`, and index them.

        The indexer takes a head below its journal for a lagging node, not for a fork.
        """
        while self.chain.height <= height:
            self.chain.mine()
        await self.catch_up()


@given(
    seed=st.integers(0, 2**32),
    journal_blocks=st.sampled_from((1, 3, 8, 40)),
    forks=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=4),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_index_after_any_forks_equals_a_fresh_replay(
    connection: Connection, seed: int, journal_blocks: int, forks: list[tuple[int, int, bool]]
) -> None:
    """Forks above and below the journal's depth, to longer and shorter chains, some never seen by the index."""
    await forget(connection)
    chain = IndexedChain(connection, journal_blocks, seed)
    for depth, growth, seen in [(0, 20, True), *forks]:
        chain.fork(depth)
        chain.mine(growth)
        if seen:
            await chain.catch_up()
    await chain.mine_above(20 + sum(growth for _, growth, _ in forks))
    position = await read_position(connection)
    assert position is not None
    assert position.block_hash.hex() == chain.chain.blocks[-1].header["hash"][2:]
    indexed = await index_rows(connection)
    assert indexed == await replayed(connection, chain.source, journal_blocks=1000)
    assert indexed == await replayed(connection, chain.source, journal_blocks=0)


async def test_what_can_be_undone_is_what_the_triggers_journal(connection: Connection) -> None:
    journaled = await connection.fetch(
        "select c.relname, array_remove(array[case when t.tgtype & 4 > 0 then 'insert' end,"
        " case when t.tgtype & 8 > 0 then 'delete' end, case when t.tgtype & 16 > 0 then 'update' end], null) as events"
        " from pg_trigger t join pg_class c on c.oid = t.tgrelid where t.tgname = 'save_for_undo'"
    )
    # A post's block suffices to undo it.
    every = {table: ["insert", "delete", "update"] for table in UNDOABLE_TABLES} | {"jobs": ["delete", "update"]}
    assert {row["relname"]: row["events"] for row in journaled} == every
    keys = await connection.fetch(
        "select c.relname, array_agg(a.attname::text order by array_position(i.indkey::int[], a.attnum::int)) as key"
        " from pg_index i join pg_class c on c.oid = i.indrelid"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)"
        " where i.indisprimary and c.relname = any($1) group by 1",
        list(UNDOABLE_TABLES),
    )
    assert {row["relname"]: tuple(row["key"]) for row in keys} == UNDOABLE_TABLES


async def test_a_first_backfill_leaves_every_index_of_the_tables(connection: Connection) -> None:
    indexes = "select indexdef from pg_indexes where tablename = 'jobs' order by 1"
    before = await connection.fetch(indexes)
    await IndexedChain(connection, 0, 1).mine_and_index(5, in_one_pass=True)
    assert await connection.fetch(indexes) == before
    assert len(before) > 1


HEIGHT = 30


def undone() -> float:
    """Return the number of blocks undone by reorgs so far."""
    return REGISTRY.get_sample_value("coordinatord_index_reorg_depth_blocks_sum") or 0.0


@pytest.mark.parametrize("in_one_pass", [False, True], ids=["block by block", "many blocks together"])
@pytest.mark.parametrize("journal_blocks", [3, 8])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 3])
async def test_a_fork_at_the_edge_leaves_the_index_of_a_fresh_replay(
    connection: Connection, journal_blocks: int, beyond: int, *, in_one_pass: bool
) -> None:
    await forget(connection)
    chain, before = IndexedChain(connection, journal_blocks, journal_blocks), undone()
    await chain.mine_and_index(HEIGHT, in_one_pass=False)
    chain.fork(journal_blocks + beyond)
    await chain.mine_and_index(journal_blocks + beyond + 1, in_one_pass=in_one_pass)
    assert undone() - before == (HEIGHT if beyond > 0 else journal_blocks + beyond)  # rebuilt, or undone
    indexed = await index_rows(connection)
    assert len(indexed["jobs"]) > 10
    assert indexed == await replayed(connection, chain.source, journal_blocks=1000)


@pytest.mark.parametrize("in_one_pass", [False, True], ids=["block by block", "many blocks together"])
async def test_what_lies_below_the_window_is_kept_no_longer(connection: Connection, *, in_one_pass: bool) -> None:
    await forget(connection)
    chain, journal_blocks = IndexedChain(connection, 5, 5), 5
    await chain.mine_and_index(HEIGHT, in_one_pass=False)
    for _ in range(4):
        await chain.mine_and_index(3, in_one_pass=in_one_pass)
        kept = await connection.fetchrow(
            "select min(number), count(*), (select min(block_number) from undo_journal) from index_blocks"
        )
        assert kept is not None
        assert (kept[0], kept[1]) == (chain.chain.height - journal_blocks, journal_blocks + 1)
        assert kept[2] > kept[0]
