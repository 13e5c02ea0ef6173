"""Progress of jobs before their blocks: what is reported at each step, and when it is withdrawn."""

from typing import Any

import anyio
import httpx

from common.scalars import base64_of
from tests.integration.coordinatord.relayer.mining import authorization_cancelled, money_moves, until_pooled
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, configured, staged, until
from tests.integration.coordinatord.scene.streams import Streams
from tests.integration.coordinatord.scene.unmined import mined_again, no_blocks, polling, until_true

NO_JOB = "0x" + "12" * 32
ASYNC = {"prefer": "handling=lenient, respond-async; wait=1"}
RESULT = b"sealed result"


async def op(who: Party, body: Body, **more: str) -> httpx.Response:
    return await who.http.post("/evm/ops", json=body, headers=who.authorization | more)


def rests(progress: dict[str, Any]) -> dict[str, str]:
    return {step["op"]: step["rests_on"] for step in progress["steps"]}


@shows("POST /v1/jobs", 202)
@shows("POST /evm/ops", 202)
async def test_result_arrives_before_blocks_and_all_ops_share_one(
    client: Party, provider: Party, stage: Stage, streams: Streams
) -> None:
    body = await client.paid()
    job = body["job_id"]
    async with no_blocks(stage) as running:
        polled = running.start(polling(provider))
        stored = await client.http.post("/v1/jobs", json=body, headers=ASYNC)
        assert stored.status_code == 202
        assert stored.headers["preference-applied"] == "respond-async"
        assert stored.headers["location"] == f"/v1/jobs/{job}/progress"
        posted = stored.json()
        assert (posted["job_id"], posted["status"], posted["provisional"]) == (job, "queued", True)
        assert rests(posted) in ({"post": "stored"}, {"post": "broadcast"})
        async with streams.open(f"/v1/jobs/{job}/events?provisional=1") as followed:
            first = await followed.next()
            assert (first.name, first.id, first.data["status"]) == ("provisional", "", "queued")
            assert len((await polled.get()).json()["pending"]) == 1
            claim = provider.claim(job)
            claimed = await op(provider, claim, **ASYNC)
            assert (claimed.status_code, claimed.json()["status"]) == (202, "in_progress")
            settled = running.start(lambda: op(provider, provider.settle(job, result=base64_of(RESULT))))
            while (told := await followed.next()).data["status"] != "completed":
                assert told.data["provisional"]
            (step,) = [step for step in told.data["steps"] if step["op"] == "settle"]
            assert (step["wallet"], step["provider_id"], step["completion_tok"]) == (provider.address, "1", "10")
            async with httpx.AsyncClient(trust_env=False) as gateway:
                fetched = await gateway.get(f"{stage.world.pins.gateway}/ipfs/{step['result_cid']}")
            assert fetched.content == RESULT
            assert (await client.http.get(f"/v1/jobs/{job}")).status_code == 404
            await until_true(lambda: stage.fetchval("select count(*) = 3 from relays where state = 'signed'"))
            await mined_again(stage)
            while (told := await followed.next()).name != "provisional" or told.data["provisional"]:
                pass
            assert rests(told.data) == {"post": "block", "claim": "block", "settle": "block"}
            while not all("block" in step for step in told.data["steps"]):  # the index may be first
                told = await followed.next()
            assert len({step["block"] for step in told.data["steps"]}) == 1
        assert (await settled.get()).json()["result_cid"] == step["result_cid"]
        assert (await op(provider, claim)).json()["reason"] == "NotOpen"
    assert (await client.http.get(f"/v1/jobs/{job}")).json()["status"] == "completed"


async def test_what_was_built_on_a_refused_post_is_told_as_refused(
    client: Party, provider: Party, stage: Stage, streams: Streams
) -> None:
    """The owner moves its money in the block of all three ops."""
    body = await client.paid()
    job = body["job_id"]
    async with no_blocks(stage) as running:
        polled = running.start(polling(provider))
        await client.http.post("/v1/jobs", json=body, headers=ASYNC)
        await polled.get()
        async with streams.open(f"/v1/jobs/{job}/events?provisional=1") as followed:
            assert (await op(provider, provider.claim(job), **ASYNC)).status_code == 202
            settled = running.start(lambda: op(provider, provider.settle(job, result=base64_of(RESULT))))
            while (await followed.next()).data["status"] != "completed":
                pass
            await until_pooled(stage.world.anvil)
            await money_moves(stage.world, client.wallet)
            await mined_again(stage)
            while set(rests((told := await followed.next()).data).values()) != {"refused"}:
                pass
        assert (told.data["status"], told.data["provisional"]) == ("refused", False)
        reasons = {step["op"]: step["reason"] for step in told.data["steps"]}
        assert reasons["post"] == "InsufficientBalance"
        assert reasons["claim"] == "UnknownJob"
        assert (await settled.get()).status_code == 409
    assert (await client.http.get(f"/v1/jobs/{job}/progress")).json()["status"] == "refused"


async def test_settle_is_taken_before_its_claim_of_the_claimer_alone(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    job = (await client.post())["job_id"]
    async with no_blocks(stage):
        early = await op(provider, provider.settle(job, result=base64_of(RESULT)))
        assert (early.status_code, early.json()["reason"]) == (409, "NotClaimed")
        assert (await op(provider, provider.claim(job), **ASYNC)).status_code == 202
        others = await op(rival, rival.settle(job, result=base64_of(RESULT)), **ASYNC)
        assert (others.status_code, others.json()["reason"]) == (409, "NotClaimed")
        own = await op(provider, provider.fail(job), **ASYNC)
        assert (own.status_code, own.json()["status"]) == (202, "failed")
        assert rests(own.json())["post"] == "block"
        await mined_again(stage)
        await until_true(lambda: stage.fetchval("select true from jobs where ended_because = 3"))


@shows("GET /v1/jobs/{id}/progress", 404, "not_found")
async def test_job_that_nobody_stored_has_no_progress(stage: Stage, streams: Streams) -> None:
    assert (await stage.http.get(f"/v1/jobs/{NO_JOB}/progress")).status_code == 404
    async with streams.open(f"/v1/jobs/{NO_JOB}/events?provisional=1") as followed:
        assert followed.response.status_code == 404


async def test_answer_that_is_known_before_anything_is_stored_is_given(client: Party) -> None:
    order = client.order(client.container())
    assert (await client.http.post("/v1/jobs", json=order, headers=ASYNC)).status_code == 402
    outdated = client.pay(order, 1) | {"container": base64_of(client.container())}
    assert (await client.http.post("/v1/jobs", json=outdated, headers=ASYNC)).status_code == 409


@shows("GET /v1/jobs/{id}/progress", 200)
async def test_job_of_the_index_alone_is_told_from_its_blocks(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    await op(provider, provider.claim(job))
    await op(provider, provider.settle(job, result=base64_of(RESULT)))
    await stage.fetchval("delete from relays")
    told = (await client.http.get(f"/v1/jobs/{job}/progress")).json()
    assert (told["status"], told["provisional"]) == ("completed", False)
    assert rests(told) == {"post": "block", "claim": "block", "settle": "block"}
    assert told["steps"][2]["result_cid"]


async def test_reorganisation_is_told_and_what_comes_of_it(
    client: Party, provider: Party, stage: Stage, streams: Streams
) -> None:
    body = await client.paid()
    job = body["job_id"]
    async with no_blocks(stage) as running:
        polled = running.start(polling(provider))
        await client.http.post("/v1/jobs", json=body, headers=ASYNC)
        await polled.get()
        await op(provider, provider.claim(job), **ASYNC)
        running.start(lambda: op(provider, provider.settle(job, result=base64_of(RESULT))))
        async with streams.open(f"/v1/jobs/{job}/events?provisional=1") as followed:
            await until_true(lambda: stage.fetchval("select count(*) = 3 from relays where state = 'signed'"))
            await stage.world.anvil.call("evm_mine")
            told: list[tuple[str, bool]] = []

            async def until_told(status: str, *, provisional: bool) -> None:
                with anyio.fail_after(60):
                    while not told or told[-1] != (status, provisional):
                        message = await followed.next()
                        if message.name == "provisional":
                            told.append((message.data["status"], message.data["provisional"]))

            await until_told("completed", provisional=False)
            cid = (await client.http.get(f"/v1/jobs/{job}")).json()["result_cid"]
            await stage.world.anvil.call("anvil_reorg", 1, [])
            await until_told("completed", provisional=True)
            assert (await client.http.get(f"/v1/jobs/{job}/progress")).json()["steps"][2]["result_cid"] == cid
            await until_pooled(stage.world.anvil)
            await mined_again(stage)
            await until_told("completed", provisional=False)
    assert (await client.http.get(f"/v1/jobs/{job}")).json()["result_cid"] == cid


async def test_what_was_answered_202_is_another_process_s_to_send(
    client: Party, stage: Stage, database_url: str
) -> None:
    """The process that accepted the op has ended without sending it. Another process sends it."""
    body = await client.paid()
    async with no_blocks(stage):
        async with staged(stage.world, configured(stage.world, database_url), [], relayer=False) as second:
            stored = await second.http.post("/v1/jobs", json=body, headers=ASYNC)
            assert stored.status_code == 202
        await until_pooled(stage.world.anvil)
        told = (await stage.http.get(f"/v1/jobs/{body['job_id']}/progress")).json()
        assert rests(told) == {"post": "broadcast"}
        await mined_again(stage)
        await until(lambda: client.http.get(f"/v1/jobs/{body['job_id']}"), 200)
    row = (await client.http.get(f"/evm/jobs/{body['job_id']}")).json()
    async with httpx.AsyncClient(trust_env=False) as gateway:
        assert (await gateway.get(f"{stage.world.pins.gateway}/ipfs/{row['task_cid']}")).status_code == 200


async def test_owner_that_cancels_in_the_same_block_is_first_or_pays(
    client: Party, provider: Party, stage: Stage
) -> None:
    """The owner's cancel was sent before the claim. Everything built on the claim is withdrawn."""
    job = (await client.post())["job_id"]
    async with no_blocks(stage) as running:
        cancelled = running.start(lambda: client.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job)))
        await until_pooled(stage.world.anvil)
        assert (await op(provider, provider.claim(job), **ASYNC)).status_code == 202
        settled = running.start(lambda: op(provider, provider.settle(job, result=base64_of(RESULT))))
        await until_true(lambda: stage.fetchval("select true from relays where kind = 'settle'"))
        await mined_again(stage)
        assert (await cancelled.get()).status_code == 200
        assert (await settled.get()).status_code == 409
        await until_true(lambda: stage.fetchval("select count(*) = 0 from relays where state in ('queued', 'signed')"))
    told = (await client.http.get(f"/v1/jobs/{job}/progress")).json()
    assert (told["status"], told["provisional"]) == ("cancelled", False)
    assert rests(told) == {"post": "block", "claim": "refused", "settle": "refused", "cancel": "block"}


async def test_payment_cancelled_in_the_same_block_withdraws_all(client: Party, provider: Party, stage: Stage) -> None:
    body = await client.paid()
    job = body["job_id"]
    async with no_blocks(stage) as running:
        polled = running.start(polling(provider))
        await client.http.post("/v1/jobs", json=body, headers=ASYNC)
        await polled.get()
        assert (await op(provider, provider.claim(job), **ASYNC)).status_code == 202
        settled = running.start(lambda: op(provider, provider.settle(job, result=base64_of(RESULT))))
        await until_true(lambda: stage.fetchval("select count(*) = 3 from relays where state = 'signed'"))
        await authorization_cancelled(stage.world, client.domains, client.wallet, job)
        await mined_again(stage)
        refused = await settled.get()
        assert (refused.status_code, refused.json()["reason"] in ("NotClaimed", "UnknownJob")) == (409, True)
        await until_true(lambda: stage.fetchval("select count(*) = 0 from relays where state in ('queued', 'signed')"))
    told = (await client.http.get(f"/v1/jobs/{job}/progress")).json()
    assert told["status"] in ("refused", "queued")
    assert "in_progress" not in told["status"]
    assert {rests(told)[each] for each in ("claim", "settle")} == {"refused"}
