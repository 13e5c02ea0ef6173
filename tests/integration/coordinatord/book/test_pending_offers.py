"""Jobs offered while their post is under way: to whom, for how long, and what becomes of their claims."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from common.quotes import Terms, amount
from coordinatord.base.metrics import REGISTRY
from tests.integration.coordinatord.relayer.mining import mining_by_hand, money_moves, until_pooled
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged

pytestmark = pytest.mark.anyio

POLL = "/evm/jobs?state=Open&model=1&free=1"
_LEASED = "select provider_id from leases where job_id = $1 and expires_at > clock_timestamp()"


class Outcome:
    """Answer to a request that runs in a task."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._answer: httpx.Response | None = None

    def hear(self, answer: httpx.Response) -> None:
        self._answer = answer
        self._done.set()

    async def get(self) -> httpx.Response:
        with anyio.fail_after(20):
            await self._done.wait()
        assert self._answer is not None
        return self._answer


class Running:
    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks

    def start(self, ask: Callable[[], Awaitable[httpx.Response]]) -> Outcome:
        outcome = Outcome()

        async def run() -> None:
            outcome.hear(await ask())

        self._tasks.start_soon(run)
        return outcome


@asynccontextmanager
async def no_blocks(stage: Stage) -> AsyncIterator[Running]:
    """No block is mined but by hand; what still runs at the end is left."""
    async with mining_by_hand(stage.world.anvil), anyio.create_task_group() as tasks:
        yield Running(tasks)
        tasks.cancel_scope.cancel()


def polling(
    who: Party, more: str = "&pending=1&wait=20", http: httpx.AsyncClient | None = None
) -> Callable[[], Awaitable[httpx.Response]]:
    return lambda: (http or who.http).get(POLL + more, headers=who.authorization)


def posting(who: Party, body: Body) -> Callable[[], Awaitable[httpx.Response]]:
    return lambda: who.http.post("/v1/jobs", json=body)


def claiming(who: Party, job: str) -> Callable[[], Awaitable[httpx.Response]]:
    return lambda: who.http.post("/evm/ops", json=who.claim(job), headers=who.authorization)


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("coordinatord_pending_offers_total", {"outcome": outcome}) or 0.0


async def until_true(look: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(15):
        while not await look():  # noqa: ASYNC110 - the table tells nobody
            await anyio.sleep(0.02)


async def test_waiting_poll_is_offered_a_job_before_its_block_and_claims_it_behind_the_post(
    client: Party, provider: Party, stage: Stage
) -> None:
    body = await client.paid()
    job = body["job_id"]
    async with no_blocks(stage) as running:
        polled, posted = running.start(polling(provider)), running.start(posting(client, body))
        answer = (await polled.get()).json()
        assert answer["jobs"] == []
        (offer,) = answer["pending"]
        same = ("job_id", "owner", "c", "rate_in", "units_out", "designated", "expires_at", "signature", "auth_sig")
        assert [offer[name] for name in same] == [str(body[name]) for name in same]
        terms = Terms(offer["fee_bps"], int(offer["gas_fee"]))
        assert offer["amount"] == body["amount"] == str(amount(1_000_000, 2_000_000, 1000, 1000, terms))
        claimed = running.start(claiming(provider, job))
        await until_true(lambda: stage.fetchval("select true from relays where kind = 'claim'"))
        assert await stage.fetchval(_LEASED, bytes.fromhex(job[2:])) == 1
        await until_pooled(stage.world.anvil)
        await stage.world.anvil.call("evm_setAutomine", True)
        await stage.world.anvil.call("evm_mine")
        assert (await posted.get()).status_code == 201
        assert (await claimed.get()).status_code == 201
    row = (await client.http.get(f"/evm/jobs/{job}")).json()
    assert (row["state"], row["provider_id"]) == (1, "1")
    await until_true(lambda: stage.fetchval("select count(*) = 0 from pending_offers"))


async def test_poll_that_does_not_ask_sees_no_pending_jobs(client: Party, provider: Party, stage: Stage) -> None:
    async with no_blocks(stage) as running:
        running.start(posting(client, await client.paid()))
        await until_pooled(stage.world.anvil)
        await until_true(lambda: stage.fetchval("select true from pending_offers"))
        answer = await provider.http.get(POLL, headers=provider.authorization)
        assert answer.json().keys() == {"jobs", "as_of_block"}
        assert (await provider.http.get(POLL + "&pending=0", headers=provider.authorization)).json().keys() == {
            "jobs",
            "as_of_block",
        }
        assert await stage.fetchval("select count(*) from leases") == 0


async def test_provider_that_does_not_answer_loses_the_offer_to_the_next(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    lapsed, body = counted("lapsed"), await client.paid()
    async with no_blocks(stage) as running:
        first = running.start(polling(provider))
        running.start(posting(client, body))
        assert len((await first.get()).json()["pending"]) == 1
        began = anyio.current_time()
        second = running.start(polling(rival))
        assert len((await second.get()).json()["pending"]) == 1
        assert anyio.current_time() - began > 0.5
        assert counted("lapsed") == lapsed + 1
        late = await claiming(provider, body["job_id"])()
        assert (late.status_code, late.json()["reason"]) == (409, "UnknownJob")
        assert await stage.fetchval("select count(*) from relays where kind = 'claim'") == 0
        assert (await polling(provider, "&pending=1")()).json()["pending"] == []


async def test_designated_job_is_offered_to_its_provider_alone(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    body = await client.paid(designated=1)
    async with no_blocks(stage) as running:
        other, its = running.start(polling(rival, "&pending=1&wait=3")), running.start(polling(provider))
        running.start(posting(client, body))
        assert [offer["job_id"] for offer in (await its.get()).json()["pending"]] == [body["job_id"]]
        assert (await other.get()).json()["pending"] == []


async def test_poll_at_another_coordinator_is_offered_the_job_and_claims_it_there(
    client: Party, provider: Party, stage: Stage, database_url: str
) -> None:
    body = await client.paid()
    config = configured(stage.world, database_url)
    async with staged(stage.world, config, [], relayer=False) as second, no_blocks(stage) as running:
        polled = running.start(polling(provider, http=second.http))
        posted = running.start(posting(client, body))
        assert len((await polled.get()).json()["pending"]) == 1
        op = provider.claim(body["job_id"])
        claimed = running.start(lambda: second.http.post("/evm/ops", json=op, headers=provider.authorization))
        await until_true(lambda: stage.fetchval("select true from relays where kind = 'claim'"))
        await until_pooled(stage.world.anvil)
        await stage.world.anvil.call("evm_setAutomine", True)
        await stage.world.anvil.call("evm_mine")
        assert [(await outcome.get()).status_code for outcome in (posted, claimed)] == [201, 201]


async def test_claim_of_a_job_whose_post_is_refused_ends_refused(client: Party, provider: Party, stage: Stage) -> None:
    """The owner moves its money in the block that has both."""
    body = await client.paid()
    async with no_blocks(stage) as running:
        polled = running.start(polling(provider))
        posted = running.start(posting(client, body))
        assert len((await polled.get()).json()["pending"]) == 1
        claimed = running.start(claiming(provider, body["job_id"]))
        await until_true(lambda: stage.fetchval("select true from relays where kind = 'claim'"))
        await until_pooled(stage.world.anvil)
        await money_moves(stage.world, client.wallet)
        await stage.world.anvil.call("evm_setAutomine", True)
        await stage.world.anvil.call("evm_mine")
        refused = await posted.get()
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "InsufficientBalance")
        told = await claimed.get()
        assert (told.status_code, told.json()) == (409, {"ok": False, "reason": "UnknownJob"})
        assert await stage.fetchval(_LEASED, bytes.fromhex(body["job_id"][2:])) is None
