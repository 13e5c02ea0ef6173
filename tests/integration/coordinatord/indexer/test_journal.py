"""The journal is exact: after any blocks and reorgs, the tables equal those of a fresh replay."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinatord.base.wake import Wake
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.indexer.undo_sql import UNDOABLE_TABLES
from coordinatord.storage.database.connections import Connection
from tests.integration.coordinatord.indexer.index_rows import Rows, forget, index_rows
from tests.support.fakes.chain import CHAIN_ID, DECODER, FakeChain
from tests.support.fakes.history import History

pytestmark = pytest.mark.anyio


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


@given(
    seed=st.integers(0, 2**32),
    journal_blocks=st.sampled_from((1, 3, 8, 40)),
    forks=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=4),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_index_after_any_forks_equals_a_fresh_replay(
    connection: Connection,
    seed: int,
    journal_blocks: int,
    forks: list[tuple[int, int, bool]],
) -> None:
    """Forks above and below the journal's depth, to longer and shorter chains, some never seen by the index."""
    await forget(connection)
    chain, histories = FakeChain(), [History(random.Random(seed))]  # noqa: S311 - histories, not keys
    source = NodeSource(chain.rpc(), DECODER)
    indexer = follower(source, journal_blocks)
    for depth, growth, seen in [(0, 20, True), *forks]:
        height = max(0, chain.height - depth)
        chain.fork(height)
        del histories[height + 1 :]
        for _ in range(growth):
            history = histories[-1].branch()
            chain.mine(*history.block())
            histories.append(history)
        if seen:
            await indexer.catch_up(connection)
    # A chain shorter than the journal looks like a node that is behind, so let it grow first.
    while chain.height <= 20 + sum(growth for _, growth, _ in forks):
        chain.mine()
    await indexer.catch_up(connection)
    position = await read_position(connection)
    assert position is not None
    assert position.block_hash.hex() == chain.blocks[-1].header["hash"][2:]
    indexed = await index_rows(connection)
    assert indexed == await replayed(connection, source, journal_blocks=1000)
    assert indexed == await replayed(connection, source, journal_blocks=0)


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
    chain, history = FakeChain(), History(random.Random(1))  # noqa: S311 - histories, not keys
    for _ in range(5):
        chain.mine(*history.block())
    await follower(NodeSource(chain.rpc(), DECODER), journal_blocks=0).catch_up(connection)
    assert await connection.fetch(indexes) == before
    assert len(before) > 1
