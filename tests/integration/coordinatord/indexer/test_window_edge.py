"""The edge of the journal's window: a fork to its lowest block is undone, one block deeper rebuilds the index; and what
lies below the edge is kept no longer."""

import random

import pytest

from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexFollower
from coordinatord.storage.database.connections import Connection
from tests.integration.coordinatord.indexer.index_rows import forget, index_rows
from tests.integration.coordinatord.indexer.test_journal import follower, replayed
from tests.support.fakes.chain import DECODER, FakeChain
from tests.support.fakes.history import History

pytestmark = pytest.mark.anyio

HEIGHT = 30


class Growing:
    """A chain of random blocks, and an index that follows it one or many blocks at a time."""

    def __init__(self, connection: Connection, window: int) -> None:
        self.chain = FakeChain()
        self.source = NodeSource(self.chain.rpc(), DECODER)
        self.connection = connection
        self._histories = [History(random.Random(window))]  # noqa: S311 - histories, not keys
        self._indexer: IndexFollower = follower(self.source, window)

    async def grow(self, blocks: int, *, at_once: bool) -> None:
        for n in range(blocks):
            history = self._histories[-1].branch()
            self.chain.mine(*history.block())
            self._histories.append(history)
            if not at_once or n == blocks - 1:
                await self._indexer.catch_up(self.connection)

    def fork(self, depth: int) -> None:
        height = self.chain.height - depth
        self.chain.fork(height)
        del self._histories[height + 1 :]

    async def kept(self) -> tuple[int, int, int]:
        """Return the lowest block of the run, the run's length, and the lowest block with journal entries."""
        row = await self.connection.fetchrow(
            "select min(number), count(*), (select min(block_number) from undo_journal) from index_blocks"
        )
        assert row is not None
        return row[0], row[1], row[2]


def undone() -> float:
    """Return the number of blocks undone by reorgs so far."""
    return REGISTRY.get_sample_value("coordinatord_index_reorg_depth_blocks_sum") or 0.0


@pytest.mark.parametrize("at_once", [False, True], ids=["block by block", "many blocks together"])
@pytest.mark.parametrize("window", [3, 8])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 3])
async def test_a_fork_at_the_edge_leaves_the_index_of_a_fresh_replay(
    connection: Connection, window: int, beyond: int, *, at_once: bool
) -> None:
    await forget(connection)
    growing, before = Growing(connection, window), undone()
    await growing.grow(HEIGHT, at_once=False)
    growing.fork(window + beyond)
    await growing.grow(window + beyond + 1, at_once=at_once)
    assert undone() - before == (HEIGHT if beyond > 0 else window + beyond)  # rebuilt, or undone
    indexed = await index_rows(connection)
    assert len(indexed["jobs"]) > 10
    assert indexed == await replayed(connection, growing.source, journal_blocks=1000)


@pytest.mark.parametrize("at_once", [False, True], ids=["block by block", "many blocks together"])
async def test_what_lies_below_the_window_is_kept_no_longer(connection: Connection, *, at_once: bool) -> None:
    await forget(connection)
    growing, window = Growing(connection, 5), 5
    await growing.grow(HEIGHT, at_once=False)
    for _ in range(4):
        await growing.grow(3, at_once=at_once)
        lowest, blocks, lowest_journaled = await growing.kept()
        assert (lowest, blocks) == (growing.chain.height - window, window + 1)
        assert lowest_journaled > lowest
