"""An owner posts another order under the id of an offer for which a provider has already signed a claim."""

import anyio
import asyncpg
import httpx
import pytest

from common.messages.jobs import Order
from common.quotes import FeeTerms, amount
from coordinatord.chain.contracts import job_registry
from tests.integration.coordinatord.relayer.mining import ahead_of_the_relayer, mining_by_hand
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.svcd.daemon.scene import Scene, until


def swapped_post(client: Party, body: Body, terms: FeeTerms, **changed: int) -> bytes:
    """Return calldata that posts another order with the commitment of `body`."""
    names = ("model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at")
    values = {name: int(body[name]) for name in names} | changed
    order = Order(c=bytes.fromhex(body["c"][2:]), **values)
    cost = amount(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    paid = client.pay({name: str(value) for name, value in values.items()} | {"job_id": body["job_id"]}, cost)
    return job_registry.post_calldata(
        order,
        client.wallet.address,
        amount=cost,
        task_cid="bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy",
        order_signature=client.wallet.sign(client.domains.jobs.digest(order)),
        payment=bytes.fromhex(paid["auth_sig"][2:]),
    )


@pytest.mark.long
async def test_order_swapped_before_its_block_costs_nothing(scene: Scene) -> None:
    world, client = scene.world, scene.client
    database = await asyncpg.connect(scene.database_url)
    try:
        with scene.daemon():
            warm_up = await scene.ended(await scene.post())
            assert warm_up["status"] == "completed", scene.log
            standing = await reputation(scene)
            body = await client.paid(designated=world.market.provider_ids[world.wallets.demo_provider.address])
            quoted = (await client.http.post("/v1/jobs", json=client.order())).json()["quote"]
            terms = FeeTerms(quoted["fee_bps"], int(quoted["gas_fee"]))
            answers = []

            async def post() -> None:
                answers.append(await client.http.post("/v1/jobs", json=body))

            async with anyio.create_task_group() as tasks, mining_by_hand(world.anvil):
                tasks.start_soon(post)

                async def claim_under_way() -> bool:
                    query = "select count(*) = 1 from relays where kind = 'claim' and subject = $1"
                    return bool(await database.fetchval(query, bytes.fromhex(body["job_id"][2:])))

                await until(claim_under_way)
                call = swapped_post(client, body, terms, rate_in=0, rate_out=0)
                await ahead_of_the_relayer(world.anvil, client.address, str(world.market.jobs), call)
                await world.anvil.call("evm_mine")
                await world.anvil.call("evm_setAutomine", True)
                await until(lambda: is_true(answers))
            assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (409, "DuplicateJob")

            async def indexed() -> bool:
                return "svc" in await scene.row(body["job_id"])

            await until(indexed)
            honest = await scene.ended(await scene.post())  # the daemon continues
            assert honest["status"] == "completed", scene.log
            assert (await scene.row(body["job_id"]))["status"] == "queued"
            provider = await registered(scene)
            assert provider["active_jobs"] == "0"
            assert await reputation(scene) >= standing
            claims = [line for line in scene.log.splitlines() if '"job claimed"' in line and body["job_id"][2:] in line]
            assert claims == []
    finally:
        await database.close()


@pytest.mark.long
async def test_claim_after_the_swap_was_indexed_runs_nothing(scene: Scene) -> None:
    """The provider's claim reaches the coordinator after its book shows the other order."""
    world, client = scene.world, scene.client
    with scene.daemon():
        assert (await scene.ended(await scene.post()))["status"] == "completed", scene.log
        (scene.directory / "reached").unlink()
        standing = await reputation(scene)
        body = await client.paid(designated=world.market.provider_ids[world.wallets.demo_provider.address])
        quoted = (await client.http.post("/v1/jobs", json=client.order())).json()["quote"]
        terms = FeeTerms(quoted["fee_bps"], int(quoted["gas_fee"]))
        answers: list[httpx.Response] = []

        async def post() -> None:
            answers.append(await client.http.post("/v1/jobs", json=body))

        claim_sent = scene.proxy.hold("claim", body["job_id"], before=True)
        async with anyio.create_task_group() as tasks, mining_by_hand(world.anvil):
            tasks.start_soon(post)
            with anyio.fail_after(40):
                await claim_sent.wait()
            call = swapped_post(client, body, terms, rate_in=0, rate_out=0)
            await ahead_of_the_relayer(world.anvil, client.address, str(world.market.jobs), call)
            await world.anvil.call("evm_mine")
            await world.anvil.call("evm_setAutomine", True)

            async def swap_indexed() -> bool:
                found = await client.http.get(f"/v1/jobs/{body['job_id']}")
                return found.status_code == 200 and found.json().get("svc", {}).get("rate_in") == "0"

            await until(swap_indexed)
            scene.proxy.forward()
            await until(lambda: is_true(answers))

        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (409, "DuplicateJob")

        async def claim_refused() -> bool:
            return bool(refusals(scene, body["job_id"]))

        await until(claim_refused)
        assert "UnknownJob" in refusals(scene, body["job_id"])[0]
        assert not (scene.directory / "reached").exists()  # the model was not run
        assert (await scene.row(body["job_id"]))["status"] == "queued"
        assert (await registered(scene))["active_jobs"] == "0"
        assert await reputation(scene) >= standing
        assert (await scene.ended(await scene.post()))["status"] == "completed", scene.log


def refusals(scene: Scene, job: str) -> list[str]:
    return [line for line in scene.log.splitlines() if '"claim refused"' in line and job[2:] in line]


async def is_true(values: list[object]) -> bool:
    return bool(values)


async def registered(scene: Scene) -> Body:
    provider_id = scene.world.market.provider_ids[scene.world.wallets.demo_provider.address]
    row: Body = (await scene.client.http.get(f"/evm/providers/{provider_id}")).json()
    return row


async def reputation(scene: Scene) -> int:
    return int((await registered(scene))["reputation"])
