"""Jobs offered while their post is under way: recipients, duration, and their claims."""

import anyio

from common.quotes import FeeTerms, amount
from tests.integration.coordinatord.relayer.mining import money_moves, until_pooled
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged
from tests.integration.coordinatord.scene.unmined import (
    POLL,
    claiming,
    mined_again,
    no_blocks,
    polling,
    posting,
    until_true,
)

_LEASED = "select provider_id from leases where job_id = $1 and expires_at > clock_timestamp()"


async def test_waiting_poll_claims_a_job_before_its_block(client: Party, provider: Party, stage: Stage) -> None:
    body = await client.paid()
    job = body["job_id"]
    async with no_blocks(stage) as running:
        polled, posted = running.start(polling(provider)), running.start(posting(client, body))
        answer = (await polled.get()).json()
        assert answer["jobs"] == []
        (offer,) = answer["pending"]
        same = ("job_id", "owner", "c", "rate_in", "units_out", "designated", "expires_at", "signature", "auth_sig")
        assert [offer[name] for name in same] == [str(body[name]) for name in same]
        terms = FeeTerms(offer["fee_bps"], int(offer["gas_fee"]))
        assert offer["amount"] == body["amount"] == str(amount(1_000_000, 2_000_000, 1000, 1000, terms))
        claimed = running.start(claiming(provider, job))
        await until_true(lambda: stage.fetchval("select true from relays where kind = 'claim'"))
        assert await stage.fetchval(_LEASED, bytes.fromhex(job[2:])) == 1
        await until_pooled(stage.world.anvil)
        held = await stage.fetchval("select expires_at from leases")
        again = running.start(claiming(provider, job))
        await until_true(lambda: stage.fetchval("select expires_at > $1 from leases", held))
        await mined_again(stage)
        assert (await posted.get()).status_code == 201
        assert (await claimed.get()).status_code == 201
        assert (await again.get()).status_code in (201, 409)  # it joined the first claim, or came after its block
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


async def test_unanswered_offer_goes_to_the_next_provider(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    body = await client.paid()
    async with no_blocks(stage) as running:
        first = running.start(polling(provider))
        running.start(posting(client, body))
        assert len((await first.get()).json()["pending"]) == 1
        began = anyio.current_time()
        second = running.start(polling(rival))
        assert len((await second.get()).json()["pending"]) == 1
        assert anyio.current_time() - began > 0.5
        late = await claiming(provider, body["job_id"])()
        assert (late.status_code, late.json()["reason"]) == (409, "UnknownJob")
        assert await stage.fetchval("select count(*) from relays where kind = 'claim'") == 0
        assert (await polling(provider, "&pending=1")()).json()["pending"] == []


async def test_offer_below_a_providers_rates_goes_to_the_next(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    body = await client.paid()
    dearer = f"&pending=1&wait=20&min_rate_in={int(body['rate_in']) + 1}"
    async with no_blocks(stage) as running:
        first = running.start(polling(provider, dearer))
        await until_true(lambda: stage.fetchval("select true from liveness where provider_id = 1"))
        second = running.start(polling(rival))
        await until_true(lambda: stage.fetchval("select true from liveness where provider_id = 2"))
        running.start(posting(client, body))
        assert [offer["job_id"] for offer in (await second.get()).json()["pending"]] == [body["job_id"]]
        assert not first.is_there


async def test_designated_job_is_offered_to_its_provider_alone(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    body = await client.paid(designated=1)
    async with no_blocks(stage) as running:
        other, its = running.start(polling(rival, "&pending=1&wait=3")), running.start(polling(provider))
        running.start(posting(client, body))
        assert [offer["job_id"] for offer in (await its.get()).json()["pending"]] == [body["job_id"]]
        assert (await other.get()).json()["pending"] == []


async def test_poll_at_another_coordinator_gets_the_offer(
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
        await mined_again(stage)
        assert [(await outcome.get()).status_code for outcome in (posted, claimed)] == [201, 201]


async def test_claim_of_a_job_whose_post_is_refused_ends_refused(client: Party, provider: Party, stage: Stage) -> None:
    """The owner moves its money in the block of both ops."""
    body = await client.paid()
    async with no_blocks(stage) as running:
        polled = running.start(polling(provider))
        posted = running.start(posting(client, body))
        assert len((await polled.get()).json()["pending"]) == 1
        claimed = running.start(claiming(provider, body["job_id"]))
        await until_true(lambda: stage.fetchval("select true from relays where kind = 'claim'"))
        await until_pooled(stage.world.anvil)
        await money_moves(stage.world, client.wallet)
        await mined_again(stage)
        refused = await posted.get()
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "InsufficientBalance")
        told = await claimed.get()
        assert (told.status_code, told.json()) == (409, {"ok": False, "reason": "UnknownJob"})
        job = bytes.fromhex(body["job_id"][2:])
        with anyio.fail_after(3):
            await until_true(lambda: stage.fetchval(f"select not exists ({_LEASED})", job))
        assert await stage.fetchval("select count(*) from pending_offers") == 0
