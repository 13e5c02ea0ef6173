"""Free capacity of providers: what uses it, and its effect on candidates and batch plans."""

from collections.abc import AsyncIterator

import pytest

from coordinatord.api.batches.plan import BatchPlanner, read_plan
from coordinatord.api.book.candidates_sql import Demand, read_candidates
from coordinatord.api.book.liveness_sql import record_pick
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from tests.integration.coordinatord.book.market_rows import add_jobs, add_models, add_providers, begin_index

pytestmark = pytest.mark.anyio

LIVENESS_MS = 15_000
CAPACITY = 8


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    async with open_database(database_url, max_size=1) as database, database.connection() as connection:
        await migrate(connection)
        await begin_index(connection)
        await add_models(connection, 1)
        await add_providers(connection, 3)
        await connection.execute("update providers set requested = $1", CAPACITY)
        for provider in (1, 2, 3):
            await connection.execute("insert into asks values ($1, 1, 3600, 10, 10)", provider)
            await connection.execute("insert into liveness values ($1, 1, 5, clock_timestamp())", provider)
        yield connection


@pytest.fixture
async def database(connection: Connection, database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=1) as database:
        yield database


async def load(connection: Connection, **jobs: int) -> None:
    for provider, number in jobs.items():
        await connection.execute(
            "update providers set active_jobs = $2 where provider_id = $1", int(provider.removeprefix("p")), number
        )


async def rooms(database: Database, most: int | None) -> list[tuple[int, int]]:
    demand = Demand(1, 3600, 1, 1) if most is None else Demand(1, 3600, 1, 1, rate_in=10, rate_out=10)
    return [(ask.provider_id, ask.room) for ask in await read_candidates(database, demand, LIVENESS_MS, most)]


async def test_equal_prices_rank_by_load(connection: Connection, database: Database) -> None:
    await load(connection, p1=7, p2=0, p3=3)
    assert await rooms(database, 3) == [(2, 8), (3, 5), (1, 1)]
    await connection.execute("update asks set rate_in = 9 where provider_id = 1")
    assert await rooms(database, 3) == [(1, 1), (2, 8), (3, 5)]


async def test_light_loads_take_turns(connection: Connection, database: Database) -> None:
    await load(connection, p2=1)
    await record_pick(database, 1, 1)
    assert [provider for provider, _ in await rooms(database, 3)] == [2, 3, 1]


async def test_full_provider_is_no_candidate(connection: Connection, database: Database) -> None:
    await load(connection, p1=8, p2=9)
    assert await rooms(database, 3) == [(3, 8)]


async def test_probe_lists_full_providers_last(connection: Connection, database: Database) -> None:
    await load(connection, p1=8, p3=3)
    await connection.execute("update asks set rate_in = 1 where provider_id = 1")
    assert await rooms(database, None) == [(2, 8), (3, 5), (1, 0)]


async def test_designated_orders_take_up_room(connection: Connection, database: Database) -> None:
    await add_jobs(connection, 5, models=1)
    await connection.execute("update jobs set designated = 1 where ordinal < 4")
    await connection.execute("update jobs set state = 3, ended_because = 5 where ordinal = 0")  # expired
    # An offer with its post under way, and an offer with its post already in a block.
    offer = (
        "insert into pending_offers (job_id, relay_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in,"
        " units_out, designated, expires_at, order_sig, pay_sig, fee_bps, gas_fee, task_cid)"
        " select $1, 1, j.owner, j.c, 1, 3600, 10, 10, 1, 1, 1, j.expires_at, j.c, j.c, 250, 2000, ''"
        " from jobs j where j.ordinal = 1"
    )
    await connection.execute(offer, b"\x77" * 32)
    await connection.execute(offer, await connection.fetchval("select job_id from jobs where ordinal = 1"))
    assert dict(await rooms(database, 3)) == {1: CAPACITY - 3 - 1, 2: CAPACITY, 3: CAPACITY}


async def test_plan_fills_only_room(connection: Connection, database: Database) -> None:
    await load(connection, p1=8, p2=6, p3=8)
    model = {"model_id": 1, "lines": 5, "units_in": 5, "units_out": 5}
    plan = await BatchPlanner(database, LIVENESS_MS).plan_models(
        read_plan({"completion_window": "1h", "models": [model]})
    )
    assert [(share.provider_id, share.lines) for share in plan.plan[0].allocation] == [("2", "2")]
