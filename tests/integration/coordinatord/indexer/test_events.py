"""The event log reports every job's changes. At each block, a follower's state equals the index."""

from unittest.mock import AsyncMock

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.api.events import EventKind
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer import expiry_sql
from coordinatord.chain.indexer.events_sql import drop_old_events
from coordinatord.storage.database.connections import Connection
from tests.integration.coordinatord.indexer.scene import forget
from tests.integration.coordinatord.indexer.test_expiry import LAST, POSTED, Market, burst
from tests.integration.coordinatord.indexer.test_journal import IndexedChain
from tests.support.fakes.history import GENESIS

Told = tuple[str, int, int | None]  # name of the event, its block, and the block of the event that it takes back


@attrs.define
class Reader:
    """A reader that follows the log as docs/protocol describes, and reads the index again after a reset."""

    connection: Connection
    last: int
    jobs: dict[bytes, dict[int, tuple[int, int]]] = attrs.field(factory=dict)  # events in force, by id
    resets: int = 0

    @classmethod
    async def from_here(cls, connection: Connection) -> "Reader":
        reader = cls(connection, await connection.fetchval("select max(id) from events"))
        await reader.reset()
        return reader

    async def reset(self) -> None:
        rows = await self.connection.fetch("select job_id, state, ended_because from jobs")
        self.jobs = {row["job_id"]: {0: (row["state"], row["ended_because"])} for row in rows}

    async def read(self) -> None:
        rows = await self.connection.fetch("select * from events where id > $1 order by id", self.last)
        unknown: set[bytes] = set()  # jobs whose state before a reorg is not known here
        for row in rows:
            self.last = row["id"]
            if row["kind"] == EventKind.RESET:
                self.resets += 1
                continue
            stands = self.jobs.setdefault(row["job_id"], {})
            if row["takes_back"] is not None:
                if stands.pop(row["takes_back"], None) is None:
                    unknown.add(row["job_id"])
            else:
                stands[row["id"]] = row["state"], row["ended_because"]
        if any(row["kind"] == EventKind.RESET for row in rows):
            await self.reset()
        known = await states_of(self.connection)
        self.jobs |= {job: {0: known[job]} if job in known else {} for job in unknown}

    def states(self) -> dict[bytes, tuple[int, int]]:
        return {job: stands[max(stands)] for job, stands in self.jobs.items() if stands}


async def states_of(connection: Connection) -> dict[bytes, tuple[int, int]]:
    rows = await connection.fetch("select job_id, state, ended_because from jobs")
    return {row["job_id"]: (row["state"], row["ended_because"]) for row in rows}


async def told(connection: Connection, since: int) -> list[Told]:
    rows = await connection.fetch(
        "select e.kind, e.block_number, t.block_number as taken from events e left join events t on t.id = e.takes_back"
        " where e.id > $1 order by e.id",
        since,
    )
    return [(EventKind(row["kind"]).name.lower(), row["block_number"], row["taken"]) for row in rows]


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32),
    journal_blocks=st.sampled_from((1, 8, 40)),
    forks=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=5),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_folded_events_equal_job_states_after_forks(
    connection: Connection, seed: int, journal_blocks: int, forks: list[tuple[int, int, bool]]
) -> None:
    """Forks within the journal are reported as events taken back. Deeper forks, and bulk, are reported as a reset."""
    await forget(connection)
    chain, reader = IndexedChain(connection, journal_blocks, seed), await Reader.from_here(connection)
    for depth, growth, seen in [(0, 20, True), *forks]:
        chain.fork(depth)
        chain.mine(growth)
        if seen:
            await chain.catch_up()
            await reader.read()
            assert reader.states() == await states_of(connection)
    await chain.mine_above(20 + sum(growth for _, growth, _ in forks))
    await reader.read()
    assert reader.states() == await states_of(connection)
    if journal_blocks == 40 and sum(depth + growth for depth, growth, _ in forks) < 20:
        assert reader.resets == 0


async def test_each_job_change_is_reported_once(connection: Connection) -> None:
    market = Market.of(connection, journal_blocks=64)
    market.chain.mine(contract_events.JobClaimed(POSTED.job_id, 1, GENESIS + 2))
    market.chain.mine(contract_events.JobSettled(POSTED.job_id, 1, 5, 6, 7, 8, "bafkresult"))
    assert await market.at(3) == (2, 1)
    rows = await connection.fetch("select * from events where kind <> 7 order by id")
    assert [
        (row["kind"], row["block_number"], row["provider_id"], row["state"], row["ended_because"]) for row in rows
    ] == [
        (EventKind.POSTED, 1, 0, 0, 0),
        (EventKind.CLAIMED, 2, 1, 1, 0),
        (EventKind.SETTLED, 3, 1, 2, 1),
    ]
    assert {(row["job_id"], row["owner"], row["model_id"], row["designated"]) for row in rows} == {
        (POSTED.job_id, POSTED.owner, POSTED.model_id, POSTED.designated)
    }
    assert [row["block_time"] for row in rows] == [GENESIS + 1, GENESIS + 2, GENESIS + 3]


async def test_reorg_withdraws_newest_events_first(connection: Connection) -> None:
    market = Market.of(connection, journal_blocks=64)
    await market.at(1)
    since = await connection.fetchval("select max(id) from events")
    market.chain.mine(contract_events.JobClaimed(POSTED.job_id, 1, GENESIS + 2))
    market.chain.mine(contract_events.JobFailed(POSTED.job_id, 1))
    assert await market.at(3) == (3, 3)
    market.chain.fork(1)
    market.chain.mine()
    market.chain.mine(contract_events.JobCancelled(POSTED.job_id))
    assert await market.at(4) == (3, 2)
    assert await told(connection, since) == [
        ("claimed", 2, None),
        ("failed", 3, None),
        ("failed", 3, 3),
        ("claimed", 2, 2),
        ("cancelled", 3, None),
    ]
    market.chain.fork(2)  # an event is taken back only once
    market.chain.mine()
    market.chain.mine()
    since = await connection.fetchval("select max(id) from events")
    await market.at(5)
    assert (await told(connection, since))[0] == ("cancelled", 3, 3)


async def test_expiry_is_reported_at_the_first_block_after_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_sql, "MAX_MARKED_JOBS", 2)
    market = Market.of(connection, journal_blocks=64)
    market.chain.mine(*burst(5))
    await market.at(LAST)
    since = await connection.fetchval("select max(id) from events")
    with monkeypatch.context() as held:
        held.setattr("coordinatord.chain.indexer.follow.mark_next_expired_batch", AsyncMock(return_value=False))
        await market.at(LAST + 2)
    await market.at(LAST + 4)
    assert await told(connection, since) == [("expired", LAST + 1, None)] * 6
    since = await connection.fetchval("select max(id) from events")
    market.chain.fork(LAST + 1)
    await market.at(LAST + 5)
    assert await told(connection, since) == []
    market.chain.fork(LAST - 1)
    await market.at(LAST + 6)
    assert await told(connection, since) == [
        *[("expired", LAST + 1, LAST + 1)] * 6,
        *[("expired", LAST + 1, None)] * 6,
    ]


async def test_events_of_undoable_blocks_are_kept(connection: Connection) -> None:
    market = Market.of(connection, journal_blocks=3)
    await market.at(2)
    await connection.execute("update events set happened = now() - interval '2 days'")
    await drop_old_events(connection)
    assert [name for name, _, _ in await told(connection, 0)] == ["posted"]
    for height in range(3, LAST + 3):
        await market.at(height)
    await drop_old_events(connection)
    assert [name for name, _, _ in await told(connection, 0)] == ["expired"]
    await connection.execute("update events set happened = now() - interval '2 days'")
    for height in range(LAST + 3, LAST + 7):
        await market.at(height)
    await drop_old_events(connection)
    assert [name for name, _, _ in await told(connection, 0)] == ["expired"]  # readers go on from the newest
