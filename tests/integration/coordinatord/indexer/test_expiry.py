"""The index marks unclaimed jobs as expired when their time is over, and removes the mark when a reorg drops the
block."""

from unittest.mock import AsyncMock

import attrs
import msgspec
import pytest

from coordinatord.api.book import leases_sql
from coordinatord.api.book.job_pages_sql import JobFilter, read_page
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer import expiry_sql
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.storage.database.connections import Connection, Database
from tests.integration.coordinatord.indexer.scene import forget, index_rows
from tests.integration.coordinatord.indexer.test_journal import follower
from tests.support.fakes.chain import DECODER, FakeChain
from tests.support.fakes.history import GENESIS

LAST = 4  # last block at whose time the job may be claimed
OPEN, EXPIRED = (0, 0), (3, 5)
POSTED = contract_events.JobPosted(
    b"\x07" * 32, b"\xaa" * 20, 1, b"\xcc" * 32, 60, rate_in=1, rate_out=1, units_in=1, units_out=1, designated=0,
    expires_at=GENESIS + LAST, fee_bps=0, gas_fee=0, task_cid="bafk", pay_sig=b"\1" * 65,
)  # fmt: skip


@attrs.define
class Market:
    """A chain with one job on it, and an index of it."""

    connection: Connection
    chain: FakeChain
    indexer: IndexFollower

    @classmethod
    def of(cls, connection: Connection, journal_blocks: int) -> "Market":
        chain = FakeChain()
        chain.mine(POSTED, contract_events.ProviderRegistered(1, b"\x02" * 20))
        return cls(connection, chain, follower(NodeSource(chain.rpc(), DECODER), journal_blocks))

    async def at(self, height: int) -> tuple[int, int]:
        """Return the job's state in the index of the chain at this height."""
        while self.chain.height < height:
            self.chain.mine()
        await self.indexer.catch_up(self.connection)
        row = await self.connection.fetchrow("select state, ended_because from jobs")
        assert row is not None
        return row["state"], row["ended_because"]


@pytest.mark.parametrize("journal_blocks", [0, 1, 64])
async def test_open_job_is_marked_by_the_first_block_after_its_expiry(
    connection: Connection, journal_blocks: int
) -> None:
    market = Market.of(connection, journal_blocks)
    assert await market.at(LAST) == OPEN
    assert await market.at(LAST + 1) == EXPIRED


async def test_job_that_expired_before_the_index_began_is_marked(connection: Connection) -> None:
    assert await Market.of(connection, journal_blocks=0).at(LAST + 9) == EXPIRED


async def test_reorganisation_to_before_the_expiry_opens_the_job_again(connection: Connection) -> None:
    market = Market.of(connection, journal_blocks=64)
    assert await market.at(LAST + 4) == EXPIRED
    market.chain.fork(LAST - 1)
    market.chain.mine(contract_events.JobClaimed(POSTED.job_id, 1, GENESIS + LAST))
    assert await market.at(LAST + 5) == (1, 0)


async def test_reorganisation_after_the_expiry_leaves_the_mark(connection: Connection) -> None:
    market = Market.of(connection, journal_blocks=64)
    assert await market.at(LAST + 4) == EXPIRED
    market.chain.fork(LAST + 2)
    assert await market.at(LAST + 5) == EXPIRED


async def test_undone_last_moment_claim_marks_the_job_expired(connection: Connection) -> None:
    """The journal restores the row from before its mark."""
    market = Market.of(connection, journal_blocks=64)
    assert await market.at(LAST - 1) == OPEN
    market.chain.mine(contract_events.JobClaimed(POSTED.job_id, 1, GENESIS + LAST))
    assert await market.at(LAST + 3) == (1, 0)
    market.chain.fork(LAST - 1)
    assert await market.at(LAST + 4) == EXPIRED


async def test_lists_count_a_marked_job_as_ended(database: Database, connection: Connection) -> None:
    market = Market.of(connection, journal_blocks=64)
    for height, state, other in ((LAST, "Open", "Cancelled"), (LAST + 1, "Cancelled", "Open")):
        await market.at(height)
        assert [row.job_id for row in (await read_page(database, JobFilter(state=state), 9, 0))[1]] == [POSTED.job_id]
        assert (await read_page(database, JobFilter(state=other), 9, 0))[1] == []


def burst(jobs: int) -> list[contract_events.JobPosted]:
    return [msgspec.structs.replace(POSTED, job_id=bytes([n]) * 32, c=bytes([n]) * 32) for n in range(1, jobs + 1)]


async def test_many_expired_jobs_are_marked_in_several_transactions(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_sql, "MAX_MARKED_JOBS", 2)
    chain = FakeChain()
    chain.mine(*burst(7), contract_events.ProviderRegistered(1, b"\x02" * 20))
    source = NodeSource(chain.rpc(), DECODER)
    indexer = follower(source, 64)
    while chain.height < LAST:
        chain.mine()
    await indexer.catch_up(connection)
    unmarked = "select count(*) from jobs where state = 0"
    left = []

    async def first_portion(*_: object) -> bool:
        left.append(await connection.fetchval(unmarked))
        return False

    chain.mine()
    with monkeypatch.context() as held:
        held.setattr("coordinatord.chain.indexer.follow.mark_next_expired_batch", first_portion)
        await indexer.catch_up(connection)  # the position has moved without waiting for all marks
    assert left == [5]
    for wanted in (JobFilter(), JobFilter(state="Open")):
        snapshot, rows = await read_page(database, wanted, 9, 0)
        assert snapshot.block_number == LAST + 1
        assert {(row.state, row.ended_because) for row in rows} == {EXPIRED}
    _, held = await leases_sql.lease_jobs(connection, PollKey(1, 1), 9, JobFilter(), 9)
    assert held == []
    chain.mine()
    await indexer.catch_up(connection)
    assert await connection.fetchval(unmarked) == 0
    rows = await index_rows(connection)
    await forget(connection)
    await follower(source, 64).catch_up(connection)
    assert await index_rows(connection) == rows


async def test_next_term_makes_the_marks_left_undone(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    market = Market.of(connection, journal_blocks=64)
    market.chain.mine(*burst(6))
    assert await market.at(LAST) == OPEN
    monkeypatch.setattr(expiry_sql, "MAX_MARKED_JOBS", 2)
    with monkeypatch.context() as killed:
        killed.setattr(
            "coordinatord.chain.indexer.follow.mark_next_expired_batch", AsyncMock(side_effect=ConnectionError)
        )
        with pytest.raises(ConnectionError):
            await market.at(LAST + 1)
    assert await connection.fetchval("select count(*) from jobs where state = 0") == 5
    indexer = follower(NodeSource(market.chain.rpc(), DECODER), 64)
    indexer._position = await read_position(connection)
    await indexer.catch_up(connection)
    assert await connection.fetchval("select count(*) from jobs where state = 0") == 0


async def test_reorg_during_marking_equals_a_replay(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_sql, "MAX_MARKED_JOBS", 2)
    market = Market.of(connection, journal_blocks=64)
    market.chain.mine(*burst(6))
    assert await market.at(LAST) == OPEN
    with monkeypatch.context() as held:
        held.setattr("coordinatord.chain.indexer.follow.mark_next_expired_batch", AsyncMock(return_value=False))
        await market.at(LAST + 1)
    market.chain.fork(LAST - 1)
    market.chain.mine(contract_events.JobClaimed(POSTED.job_id, 1, GENESIS + LAST))
    await market.at(LAST + 3)
    rows = await index_rows(connection)
    await forget(connection)
    await follower(NodeSource(market.chain.rpc(), DECODER), 64).catch_up(connection)
    assert await index_rows(connection) == rows
    assert await connection.fetchval("select count(*) from jobs where ended_because = 5") == 6
