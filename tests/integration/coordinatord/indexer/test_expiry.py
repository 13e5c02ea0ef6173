"""Jobs that nobody claims: the index marks them when their time is over, and takes the mark back with the block."""

import asyncpg
import attrs
import pytest

from coordinatord.book.sql import JobFilter, read_page
from coordinatord.chain import events as ev
from coordinatord.database.connections import Database
from coordinatord.indexer.fetch import Source
from coordinatord.indexer.follow import Follower
from tests.fakes.chain import DECODER, FakeChain
from tests.fakes.history import GENESIS
from tests.integration.coordinatord.indexer.test_journal import follower

pytestmark = pytest.mark.anyio

LAST = 4  # the block at whose time the job may still be claimed
OPEN, EXPIRED = (0, 0), (3, 5)
POSTED = ev.JobPosted(
    b"\x07" * 32, b"\xaa" * 20, 1, b"\xcc" * 32, 60, rate_in=1, rate_out=1, units_in=1, units_out=1, designated=0,
    expires_at=GENESIS + LAST, fee_bps=0, gas_fee=0, task_cid="bafk", pay_sig=b"\1" * 65,
)  # fmt: skip


@attrs.define
class Market:
    """A chain with one job on it, and an index of it."""

    connection: "asyncpg.Connection[asyncpg.Record]"
    chain: FakeChain
    indexer: Follower

    @classmethod
    def of(cls, connection: "asyncpg.Connection[asyncpg.Record]", journal_blocks: int) -> "Market":
        chain = FakeChain()
        chain.mine(POSTED, ev.ProviderRegistered(1, b"\x02" * 20))
        return cls(connection, chain, follower(Source(chain.rpc(), DECODER), journal_blocks))

    async def at(self, height: int) -> tuple[int, int]:
        """How the job stands in the index of the chain at that height."""
        while self.chain.height < height:
            self.chain.mine()
        await self.indexer.catch_up(self.connection)
        row = await self.connection.fetchrow("select state, ended_because from jobs")
        assert row is not None
        return row["state"], row["ended_because"]


@pytest.mark.parametrize("journal_blocks", [0, 1, 64])
async def test_open_job_is_marked_by_the_first_block_after_its_expiry(
    connection: "asyncpg.Connection[asyncpg.Record]", journal_blocks: int
) -> None:
    market = Market.of(connection, journal_blocks)
    assert await market.at(LAST) == OPEN
    assert await market.at(LAST + 1) == EXPIRED


async def test_job_that_expired_before_the_index_began_is_marked(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    assert await Market.of(connection, journal_blocks=0).at(LAST + 9) == EXPIRED


async def test_reorganisation_to_before_the_expiry_opens_the_job_again(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    market = Market.of(connection, journal_blocks=64)
    assert await market.at(LAST + 4) == EXPIRED
    market.chain.fork(LAST - 1)
    market.chain.mine(ev.JobClaimed(POSTED.job_id, 1, GENESIS + LAST))
    assert await market.at(LAST + 5) == (1, 0)


async def test_reorganisation_after_the_expiry_leaves_the_mark(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    market = Market.of(connection, journal_blocks=64)
    assert await market.at(LAST + 4) == EXPIRED
    market.chain.fork(LAST + 2)
    assert await market.at(LAST + 5) == EXPIRED


async def test_undo_of_a_claim_that_came_with_the_last_moment_marks_the_job(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    """The row that the journal puts back is from before its mark."""
    market = Market.of(connection, journal_blocks=64)
    assert await market.at(LAST - 1) == OPEN
    market.chain.mine(ev.JobClaimed(POSTED.job_id, 1, GENESIS + LAST))
    assert await market.at(LAST + 3) == (1, 0)
    market.chain.fork(LAST - 1)
    assert await market.at(LAST + 4) == EXPIRED


async def test_lists_count_a_marked_job_as_ended(
    database: Database, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    market = Market.of(connection, journal_blocks=64)
    for height, state, other in ((LAST, "Open", "Cancelled"), (LAST + 1, "Cancelled", "Open")):
        await market.at(height)
        assert [row.job_id for row in (await read_page(database, JobFilter(state=state), 9, 0))[1]] == [POSTED.job_id]
        assert (await read_page(database, JobFilter(state=other), 9, 0))[1] == []
