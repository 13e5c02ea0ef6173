"""Candidates of an order: reliability and free capacity of providers, and the order that follows."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from statistics import median_low

import attrs
import pytest

from common.api.limits import RELIABILITY_PERIOD_S
from coordinatord.api.batches.plan import BatchPlanner, read_plan
from coordinatord.api.book import candidates_sql, liveness_sql
from coordinatord.api.book.candidates_sql import Demand, read_candidates
from coordinatord.api.book.liveness_sql import record_pick
from coordinatord.api.book.registries_sql import read_asks, read_providers
from coordinatord.api.book.reliability_sql import ALL_MODELS, ReliabilityCounter
from coordinatord.storage.database.connections import Connection, Database
from tests.integration.coordinatord.book.market_rows import add_jobs, market

NOW = 10_000_000
SETTLED, FAILED, RECLAIMED, CANCELLED = 1, 3, 4, 2
INSERT_ASK = "insert into asks (provider_id, model_id, sla, rate_in, rate_out) values ($1, 1, 3600, 10, 10)"
INSERT_LIVENESS = "insert into liveness (provider_id, model_id, free, seen_at) values ($1, 1, 5, clock_timestamp())"
Sums = dict[tuple[int, int], tuple[int, int, int, int | None, int | None]]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Market with two models and four providers, at the time `NOW`."""
    async with market(database_url, models=2, providers=4) as database:
        await database.pool.execute("update index_position set block_time = $1", NOW)
        yield database


async def end(connection: Connection, ordinal: int, provider: int, because: int, *, at: int = NOW, secs: int) -> None:
    await connection.execute(
        "update jobs set state = case when $3 = 1 then 2 else 3 end, ended_because = $3, provider_id = $2,"
        " ended_at = $4::bigint, claimed_at = $4::bigint - $5::bigint, completion_tok = 3 * $5::bigint"
        " where ordinal = $1",
        ordinal,
        provider,
        because,
        at,
        secs,
    )


async def sums(connection: Connection) -> Sums:
    await ReliabilityCounter().refresh(connection)
    rows = await connection.fetch("select * from reliability")
    return {(row["provider_id"], row["model_id"]): tuple(row)[2:] for row in rows}


def expected(ends: list[tuple[int, int, int, int]]) -> Sums:
    """Compute the sums of (provider, model, because, seconds)."""
    found: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for provider, model, because, secs in ends:
        for key in ((provider, model), (provider, ALL_MODELS)):
            found[key][because].append(secs)
    return {
        key: (
            *(len(by[because]) for because in (SETTLED, FAILED, RECLAIMED)),
            median_low(by[SETTLED]) if by[SETTLED] else None,
            3 if any(by[SETTLED]) else None,  # each end charges three units per second
        )
        for key, by in found.items()
    }


async def test_sums_cover_the_window_and_follow_reorgs(database: Database) -> None:
    chance = random.Random(7)  # noqa: S311 - made-up ends, the same in each run
    async with database.connection() as connection:
        await add_jobs(connection, 120, models=2)
        assert await sums(connection) == {}
        models = dict(tuple(row) for row in await connection.fetch("select ordinal, model_id from jobs"))
        lately: dict[int, tuple[int, int, int, int]] = {}
        for ordinal, model in models.items():
            provider, because = chance.randint(1, 3), chance.choice([SETTLED, SETTLED, SETTLED, FAILED, RECLAIMED])
            secs = chance.randint(0, 50)
            at = chance.choice([NOW, NOW - 1, NOW - RELIABILITY_PERIOD_S + 1, NOW - RELIABILITY_PERIOD_S, NOW - 10**6])
            await end(connection, ordinal, provider, because, at=at, secs=secs)
            if at > NOW - RELIABILITY_PERIOD_S:
                lately[ordinal] = (provider, model, because, secs)
        # Jobs that were never claimed, or that ended before ends were timed, count for no provider.
        for ordinal in (3, 4):
            lately.pop(ordinal, None)
        await end(connection, 3, 0, CANCELLED, secs=0)
        await connection.execute("update jobs set ended_at = null where ordinal = 4")
        assert await sums(connection) == expected(list(lately.values()))
        gone = [ordinal for ordinal, (provider, *_) in lately.items() if provider == 2]
        await connection.execute(
            "update jobs set state = 1, ended_because = 0, ended_at = null where ordinal = any($1::bigint[])", gone
        )
        left = [ends for ordinal, ends in lately.items() if ordinal not in gone]
        assert await sums(connection) == expected(left)


async def test_sums_are_refreshed_in_proportion_to_their_cost(database: Database) -> None:
    times = iter([0.0, 2.0, 2.0, 61.0, 62.0, 63.0, 63.0])
    taken = ReliabilityCounter(clock=lambda: next(times))

    async def counted() -> int:
        async with database.connection() as connection:
            await taken.refresh(connection)
            return int(
                await connection.fetchval("select coalesce(sum(settled), 0) from reliability where model_id = 1")
            )

    assert await counted() == 0  # it took two seconds
    async with database.connection() as connection:
        await add_jobs(connection, 2, models=1)
        await end(connection, 0, 1, SETTLED, secs=5)
    assert await counted() == 0  # a minute is not over
    assert await counted() == 1


async def test_equal_prices_are_ordered_by_turn_then_reliability(database: Database) -> None:
    async with database.connection() as connection:
        await add_jobs(connection, 20, models=1)
        for provider in (1, 2, 3, 4):
            await connection.execute(INSERT_ASK, provider)
            await connection.execute(INSERT_LIVENESS, provider)
        for ordinal in range(10):  # 1 loses half of its claims, 3 settles all, 2 is new, and 4 is new and dearer
            await end(connection, ordinal, 1, SETTLED if ordinal % 2 else FAILED, secs=9)
            await end(connection, 10 + ordinal, 3, SETTLED, secs=7)
        await end(connection, 0, 1, RECLAIMED, secs=9)
        await connection.execute("update asks set rate_in = 11 where provider_id = 4")
        await sums(connection)

        async def ranked() -> list[int]:
            asks = await candidates_sql.read_candidates(database, Demand(1, 3600, 1, 1), 15_000, None)
            return [ask.provider_id for ask in asks]

        assert await ranked() == [3, 1, 2, 4]  # a rate of one half equals an unknown one, so the smaller id is first
        await connection.execute("update jobs set ended_because = 3, state = 3 where ordinal = 1")
        await sums(connection)
        assert await ranked() == [3, 2, 1, 4]
        await liveness_sql.record_pick(database, 3, 1)
        assert await ranked() == [2, 1, 3, 4]
    _, asks = await read_asks(database, 1, 10, 0)
    _, providers = await read_providers(database, 10, 0)
    of_asks = {row["provider_id"]: tuple(row)[5:10] for row in asks}
    of_providers = {row.provider_id: attrs.astuple(row.reliability) for row in providers}
    for known in (of_asks, of_providers):
        assert [known[n] for n in (1, 2, 3)] == [
            (4, 5, 1, 9, 3),
            (0, 0, 0, None, None),
            (10, 0, 0, 7, 3),
        ]


LIVENESS_MS = 15_000
CAPACITY = 8


@pytest.fixture
async def database_with_three_providers(database_url: str) -> AsyncIterator[Database]:
    """Market with three live, idle providers with equal prices and equal capacity."""
    async with market(database_url, providers=3) as database:
        await database.pool.execute("update providers set requested = $1", CAPACITY)
        for provider in (1, 2, 3):
            await database.pool.execute(INSERT_ASK, provider)
            await database.pool.execute(INSERT_LIVENESS, provider)
        yield database


async def load(database: Database, **jobs: int) -> None:
    for provider, number in jobs.items():
        await database.pool.execute(
            "update providers set active_jobs = $2 where provider_id = $1", int(provider.removeprefix("p")), number
        )


async def rooms(database: Database, most: int | None) -> list[tuple[int, int]]:
    demand = Demand(1, 3600, 1, 1) if most is None else Demand(1, 3600, 1, 1, rate_in=10, rate_out=10)
    return [(ask.provider_id, ask.room) for ask in await read_candidates(database, demand, LIVENESS_MS, most)]


async def test_equal_prices_rank_by_load(database_with_three_providers: Database) -> None:
    await load(database_with_three_providers, p1=7, p2=0, p3=3)
    assert await rooms(database_with_three_providers, 3) == [(2, 8), (3, 5), (1, 1)]
    await database_with_three_providers.pool.execute("update asks set rate_in = 9 where provider_id = 1")
    assert await rooms(database_with_three_providers, 3) == [(1, 1), (2, 8), (3, 5)]


async def test_light_loads_take_turns(database_with_three_providers: Database) -> None:
    await load(database_with_three_providers, p2=1)
    await record_pick(database_with_three_providers, 1, 1)
    assert [provider for provider, _ in await rooms(database_with_three_providers, 3)] == [2, 3, 1]


async def test_full_provider_is_no_candidate(database_with_three_providers: Database) -> None:
    await load(database_with_three_providers, p1=8, p2=9)
    assert await rooms(database_with_three_providers, 3) == [(3, 8)]


async def test_probe_lists_full_providers_last(database_with_three_providers: Database) -> None:
    await load(database_with_three_providers, p1=8, p3=3)
    await database_with_three_providers.pool.execute("update asks set rate_in = 1 where provider_id = 1")
    assert await rooms(database_with_three_providers, None) == [(2, 8), (3, 5), (1, 0)]


async def test_designated_orders_take_up_room(database_with_three_providers: Database) -> None:
    async with database_with_three_providers.connection() as connection:
        await add_jobs(connection, 5, models=1)
    await database_with_three_providers.pool.execute("update jobs set designated = 1 where ordinal < 4")
    await database_with_three_providers.pool.execute(
        "update jobs set state = 3, ended_because = 5 where ordinal = 0"
    )  # expired
    # An offer with its post under way, and an offer with its post already in a block.
    offer = (
        "insert into pending_offers (job_id, relay_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in,"
        " units_out, designated, expires_at, order_sig, pay_sig, fee_bps, gas_fee, task_cid)"
        " select $1, 1, j.owner, j.c, 1, 3600, 10, 10, 1, 1, 1, j.expires_at, j.c, j.c, 250, 2000, ''"
        " from jobs j where j.ordinal = 1"
    )
    await database_with_three_providers.pool.execute(offer, b"\x77" * 32)
    await database_with_three_providers.pool.execute(
        offer, await database_with_three_providers.pool.fetchval("select job_id from jobs where ordinal = 1")
    )
    assert dict(await rooms(database_with_three_providers, 3)) == {1: CAPACITY - 3 - 1, 2: CAPACITY, 3: CAPACITY}


async def test_plan_fills_only_room(database_with_three_providers: Database) -> None:
    await load(database_with_three_providers, p1=8, p2=6, p3=8)
    model = {"model_id": 1, "lines": 5, "units_in": 5, "units_out": 5}
    plan = await BatchPlanner(database_with_three_providers, LIVENESS_MS).plan_models(
        read_plan({"completion_window": "1h", "models": [model]})
    )
    assert [(share.provider_id, share.lines) for share in plan.plan[0].allocation] == [("2", "2")]
