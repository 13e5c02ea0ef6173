"""The coordinator's reaction when a provider changes its operator, or deregisters."""

from collections.abc import Callable

import anyio

from common.scalars import base64_of
from devnet.accounts import DevWallet
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, until


async def providers(world: World, sender: str, method: str, *arguments: object) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        await chain.send(contract_at(chain, "ProviderRegistry", world.market.providers), sender, method, *arguments)


async def until_operated(stage: Stage, provider_id: int, operator: str) -> None:
    with anyio.fail_after(60):
        while (await stage.http.get(f"/evm/providers/{provider_id}")).json().get("operator") != operator:  # noqa: ASYNC110 - the index tells nobody but those who ask
            await anyio.sleep(0.02)


async def test_new_operator_ends_claims_and_old_credentials(
    world: World, stage: Stage, client: Party, provider: Party, party: Callable[[DevWallet], Party]
) -> None:
    job, other = [str((await client.post())["job_id"]) for _ in range(2)]
    assert (await provider.run(provider.claim(job))).status_code == 201
    old, successor = world.wallets.with_role("provider")[0], world.wallets.with_role("client")[2]
    provider_id = world.market.provider_ids[old.address]
    await providers(world, old.address, "proposeOperator", successor.address)
    assert (await provider.run(provider.claim(other))).status_code == 201  # the old operator, until the new one accepts
    await providers(world, successor.address, "acceptOperator", provider_id)
    await until_operated(stage, provider_id, successor.address.lower())
    new = party(successor)
    await new.sign_in("provider")
    poll = await stage.http.get("/evm/jobs?state=Open&model=1&free=1", headers=provider.authorization)
    assert poll.status_code == 401
    await provider.sign_in()  # as anybody may
    answer = await provider.run(provider.settle(job, 10, result=base64_of(b"result")))
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "invalid_op_signature")
    for op in (new.settle(job, 10, result=base64_of(b"result")), new.fail(other)):
        assert (await new.run(op)).status_code == 201


async def test_deregistered_wallet_may_register_again(world: World, stage: Stage, provider: Party) -> None:
    wallet = world.wallets.with_role("provider")[0]
    former = world.market.provider_ids[wallet.address]
    await providers(world, wallet.address, "deregister")
    await providers(world, wallet.address, "register")
    await until(lambda: stage.http.get(f"/evm/providers/{former}"), 404)
    await until(lambda: stage.http.get("/evm/jobs?state=Open&model=1&free=1", headers=provider.authorization), 401)
    await provider.sign_in("provider")
    registered = "select provider_id from providers where operator = $1"
    with anyio.fail_after(60):  # the block of the registration follows that of the end
        while (found := await stage.fetchval(registered, provider.wallet.address)) is None:  # noqa: ASYNC110
            await anyio.sleep(0.05)
    assert found != former
