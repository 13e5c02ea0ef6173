"""Explanations of unclaimed jobs agree with polls and quotes, over generated books and through the routes."""

import random
from collections.abc import AsyncIterator

import attrs
import pytest

from coordinatord.api.book import candidates_sql, leases_sql, why_sql
from coordinatord.api.book.candidates_sql import Demand
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.why import explain_open_job
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.connections import Connection, Database
from tests.integration.coordinatord.book.market_rows import market
from tests.integration.coordinatord.book.test_polls import poll
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.specification import MALFORMED
from tests.integration.coordinatord.scene.stage import Stage

PROVIDERS, JOBS, BOOKS = 9, 24, 6
LIVENESS_MS = 15_000
INSERT_ASK = "insert into asks (provider_id, model_id, sla, rate_in, rate_out) values ($1, $2, $3, $4, $5)"
INSERT_PROVIDER_MODEL = "insert into provider_models (provider_id, model_id) values ($1, $2)"
UNFIT = {"model_disabled", "not_listed", "model_not_allowed", "not_live", "no_ask", "window", "price", "designated"}
NO_FUNDS_KNOWN = Funds({}, set())


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with market(database_url, models=2, providers=PROVIDERS, jobs=JOBS) as database:
        yield database


async def deal(connection: Connection, chance: random.Random) -> None:
    """Generate a book in which most providers fail some requirement."""
    await connection.execute("truncate asks, liveness, leases, provider_models")
    await connection.execute("update models set enabled = model_id = 1 or $1", chance.random() < 0.5)
    for provider in range(1, PROVIDERS + 1):
        await connection.execute(
            "update providers set listed = $2, allow_all_models = $3, requested = $4, ceiling = $4, active_jobs = $5"
            " where provider_id = $1",
            provider,
            chance.random() < 0.85,
            chance.random() < 0.6,
            chance.randint(1, 20),
            chance.choice([0, 0, 1, 3]),
        )
        for model in (1, 2):
            if chance.random() < 0.7:
                await connection.execute(
                    "insert into provider_models (provider_id, model_id) values ($1, $2)", provider, model
                )
            if chance.random() < 0.9:
                await connection.execute(
                    "insert into liveness (provider_id, model_id, free, seen_at)"
                    " values ($1, $2, $3, clock_timestamp() - $4 * interval '1 second')",
                    provider,
                    model,
                    chance.choice([0, 1, 5, 30, 30]),
                    chance.choice([1, 2, 3, 40, 4000]),
                )
            for window in (60, 3600):
                if chance.random() < 0.45:
                    rates = (chance.choice([0, 500_000, 1_000_000, 1_500_000]), chance.choice([1_000_000, 3_000_000]))
                    await connection.execute(INSERT_ASK, provider, model, window, *rates)
    for ordinal in range(JOBS):
        await connection.execute(
            "update jobs set designated = $2, sla_secs = $3, expires_at = $4 where ordinal = $1",
            ordinal,
            chance.randint(1, PROVIDERS) if chance.random() < 0.3 else 0,
            chance.choice([60, 3600, 3600]),
            chance.choice([2_000_000_000] * 9 + [0]),
        )
        if chance.random() < 0.2:
            await connection.execute(
                "insert into leases (job_id, provider_id, model_id, expires_at, unpaid)"
                " select job_id, case when designated > 0 and $2 > 0 then designated else $2 end, model_id,"
                " clock_timestamp() + $3 * interval '1 second', 0 from jobs where ordinal = $1",
                ordinal,
                chance.randint(0, PROVIDERS),
                chance.choice([-5, 60, 60]),
            )


@attrs.frozen
class RollBack(Exception):
    """Roll the transaction back, and carry its result to the caller."""

    held: set[bytes]


async def leased(database: Database, provider: int, model: int) -> set[bytes]:
    """Return the jobs that the provider's next poll would lease, and roll back."""

    async def body(connection: Connection) -> None:
        free = await connection.fetchval(
            "select free from liveness where provider_id = $1 and model_id = $2", provider, model
        )
        demand = (PollKey(provider, model), free or 0, JobFilter())
        _, held = await leases_sql.lease_jobs(connection, *demand, 60_000)
        raise RollBack({job.row.job_id for job in held})

    try:
        await database.transact(body)
    except RollBack as roll_back:
        return roll_back.held
    raise AssertionError


async def named(database: Database, job: why_sql.OpenJob) -> set[int]:
    row = job.row
    demand = Demand(
        row.model_id, row.sla_secs, row.units_in, row.units_out, row.designated, int(row.rate_in), int(row.rate_out)
    )
    return {ask.provider_id for ask in await candidates_sql.read_candidates(database, demand, LIVENESS_MS, None)}


@pytest.mark.parametrize("book", range(BOOKS))
async def test_why_agrees_with_polls_and_candidates(database: Database, book: int) -> None:
    chance = random.Random(book)  # noqa: S311 - made-up books, the same in each run
    takes_at_all = 0
    async with database.connection() as connection:
        await deal(connection, chance)
        if book == BOOKS - 1:  # a key was lost, and open bids up to block 6 may be sealed to it
            await connection.execute(
                "insert into escrow_generations (public_key, announced_from, announced_block, lost_at)"
                " values ('\\x01', 1, 1, clock_timestamp()), ('\\x02', 2, 6, null)"
            )
        jobs = [row["job_id"] for row in await connection.fetch("select job_id from jobs order by ordinal")]
        wants = "select meets_ask($1, model_id, sla_secs, rate_in, rate_out) from jobs where job_id = $2"
        handed = {(p, m): await leased(database, p, m) for p in range(1, PROVIDERS + 1) for m in (1, 2)}
        for job_id in jobs:
            _, job = await why_sql.read_job(connection, job_id)
            if job is None:
                continue  # expired
            facts = await why_sql.read_providers(connection, job, LIVENESS_MS)
            told = {int(one.provider_id): one for one in explain_open_job(job, facts, NO_FUNDS_KNOWN).providers}
            for fact in facts:
                provider, one = fact.provider_id, told[fact.provider_id]
                codes = {reason.code for reason in one.reasons}
                handing = job_id in handed[provider, job.row.model_id] and fact.listed and fact.allowed
                expected = handing and fact.live and await connection.fetchval(wants, provider, job_id)
                assert one.takes == bool(expected), (book, job_id.hex(), provider, one)
                takes_at_all += one.takes
                assert (not codes & UNFIT and bool(fact.asks)) == (provider in await named(database, job)), (
                    codes,
                    fact,
                )
            # Every provider that would be leased the job is listed.
            assert {p for p in range(1, PROVIDERS + 1) if job_id in handed[p, job.row.model_id]} <= told.keys()
    assert takes_at_all


async def of(stage: Stage, job: str) -> Body:
    answer = await stage.http.get(f"/v1/jobs/{job}/why")
    assert answer.status_code == 200, answer.text
    body: Body = answer.json()
    return body


async def asks(stage: Stage, *rows: tuple[int, int, int, int]) -> None:
    """Return asks for model 1: provider, window, rates."""
    await stage.execute("delete from asks")
    for provider, window, rate_in, rate_out in rows:
        await stage.execute(INSERT_ASK, provider, 1, window, rate_in, rate_out)


def reasons(told: Body) -> dict[str, list[str]]:
    return {one["provider_id"]: [reason["code"] for reason in one["reasons"]] for one in told["providers"]}


@shows("GET /v1/jobs/{id}/why", 200)
async def test_why_explains_an_open_job_by_price_then_window(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    # Both poll before any job can be leased.
    assert await poll(provider, "state=Open&model=1&free=5") == []
    assert await poll(rival, "state=Open&model=1&free=5") == []
    await asks(stage, (1, 3600, 3_000_000, 3_000_000), (2, 3600, 2_000_000, 2_000_000), (2, 60, 1, 1))
    job = (await client.post())["job_id"]
    told = await of(stage, job)
    assert (told["state"], told["verdict"]) == (0, "price")
    assert {one["provider_id"]: one["takes"] for one in told["providers"]} == {"1": False, "2": False}
    assert reasons(told) == {"1": ["price"], "2": ["price"]}
    assert told["would_help"] == [
        {"change": "rates", "value": {"rate_in": "2000000", "rate_out": "2000000"}, "providers": "1"},
        {"change": "window", "value": {"sla_secs": "60"}, "providers": "1"},
    ]
    await asks(stage, (1, 3600, 1, 1))
    third = (await client.post())["job_id"]
    told = await of(stage, third)
    assert (told["verdict"], told["would_help"]) == ("can_be_taken", [])
    assert reasons(told)["1"] == []
    assert third in await poll(provider, "state=Open&model=1&free=5")


async def test_lease_and_ends_are_told_in_the_same_words(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    await asks(stage)
    job = (await client.post())["job_id"]
    assert (await of(stage, job))["verdict"] == "nobody_live"
    fresh = (await client.post())["job_id"]
    assert await poll(rival, "state=Open&model=1&free=1") == [job]
    assert await poll(provider, "state=Open&model=1&free=0") == []
    told = await of(stage, fresh)
    assert reasons(told) == {"1": ["no_free_slots"], "2": ["no_free_slots"]}
    leased_to = await stage.http.get(f"/v1/jobs/{job}/why?again")
    assert leased_to.json()["verdict"] in {"leased", "nobody_live"}  # responses are cached for a second
    assert (await rival.run(rival.claim(job))).status_code == 201
    told = await of(stage, job)
    assert (told["state"], told["verdict"], told["providers"]) == (1, "claimed", [])
    assert (await rival.run(rival.fail(job))).status_code == 201
    assert (await of(stage, job))["verdict"] == "failed"
    cancelled = await stage.http.post(f"/v1/jobs/{fresh}/cancel", json=client.cancel(fresh))
    assert cancelled.status_code == 200
    assert (await of(stage, fresh))["verdict"] == "cancelled"


async def test_owner_that_cannot_pay_is_told_how_much_would_do(client: Party, provider: Party, stage: Stage) -> None:
    assert await poll(provider, "state=Open&model=1&free=5") == []
    await asks(stage, (1, 3600, 1, 1))
    job = (await client.post())["job_id"]
    amount = await stage.fetchval("select (cap + div(cap * fee_bps, 10000) + gas_fee)::text from jobs")
    token = stage.world.market.token
    await stage.world.anvil.call("anvil_dealERC20", client.address, token, "0x0")
    told = await of(stage, job)
    assert (told["verdict"], reasons(told)) == ("unfunded", {"1": ["unfunded"]})
    assert told["would_help"] == [{"change": "funds", "value": {"balance": amount}, "providers": "1"}]


@shows("GET /v1/jobs/{id}/why", 404, "not_found")
@shows("GET /v1/jobs/{id}/why", *MALFORMED)
async def test_unknown_and_malformed_ids(stage: Stage) -> None:
    for path, status in (("0x" + "77" * 32, 404), ("0x77", 400)):
        assert (await stage.http.get(f"/v1/jobs/{path}/why")).status_code == status
