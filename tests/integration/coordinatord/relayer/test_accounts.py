"""Several accounts: without its role, replaced by another, or drained."""

import anyio
from eth_utils.address import to_checksum_address

from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.role import relayer_role_of
from coordinatord.chain.relayer.transactions_sql import read_account_usages
from coordinatord.run.drain import drain
from devnet.accounts import DevWallets
from devnet.anvil import CHAIN_ID
from devnet.contracts import SigningNode, connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand, until_pooled
from tests.integration.coordinatord.relayer.ops import signer
from tests.integration.coordinatord.relayer.running import BROADCAST, Scene, mine_until_ended, relay_into
from tests.integration.coordinatord.scene.stage import configured


def checksum(account: bytes) -> str:
    return str(to_checksum_address(account))


async def set_role(chain: SigningNode, world: World, account: bytes, allowed: bool) -> None:
    for name, address in (("JobRegistry", world.market.jobs), ("ProviderRegistry", world.market.providers)):
        await chain.send(
            contract_at(chain, name, address), world.wallets.admin.address, "setRelayer", checksum(account), allowed
        )


async def test_account_without_role_leaves_posts_to_another(scene: Scene, wallets: DevWallets) -> None:
    without, other = (signer(account) for account in wallets.with_role("relayer")[:2])
    async with connect_to_chain(scene.anvil.rpc_url) as chain, scene.stage() as stage:
        await set_role(chain, scene.world, without.address, False)
        role = relayer_role_of(scene.ops.book, without.address)
        stage.start(without, role)
        async with stage.relayed(scene.post()):
            await stage.until("select count(*) = 1 from relays where state = 'queued'")
            with anyio.fail_after(60):
                while not role.is_missing:  # noqa: ASYNC110 - nobody tells
                    await anyio.sleep(0.02)
            stage.start(other, relayer_role_of(scene.ops.book, other.address))
        assert await stage.fetchval("select array_agg(account) from relay_txs") == [other.address]


async def test_posts_reverted_by_role_loss_are_mined_later(scene: Scene) -> None:
    async with connect_to_chain(scene.anvil.rpc_url) as chain, scene.stage() as stage:
        jobs = contract_at(chain, "JobRegistry", scene.world.market.jobs)
        revoking = {
            "from": scene.world.wallets.admin.address,
            "to": scene.world.market.jobs,
            "data": jobs.encode_abi("setRelayer", args=[checksum(scene.relayer.address), False]),
            "gas": hex(200_000),
            "maxFeePerGas": hex(10**12),
            "maxPriorityFeePerGas": hex(10**11),
        }
        outcomes: list[object] = []
        async with anyio.create_task_group() as callers:
            async with mining_by_hand(scene.anvil):
                stage.start(scene.relayer, relayer_role_of(scene.ops.book, scene.relayer.address))
                for _ in range(2):
                    callers.start_soon(relay_into(stage, outcomes), scene.post())
                await until_pooled(scene.anvil)
                await scene.anvil.call("eth_sendTransaction", revoking)  # higher fee, so it is mined first
                await scene.anvil.call("evm_mine")
                await stage.until("select bool_and(state = 'queued') and count(*) = 2 from relays")
            assert outcomes == []
            await set_role(chain, scene.world, scene.relayer.address, True)
        assert all(isinstance(outcome, RelayMined) for outcome in outcomes)
        await scene.check(stage)


async def test_replaced_account_is_followed_to_its_end(scene: Scene, wallets: DevWallets) -> None:
    successor = signer(wallets.with_role("relayer")[1])
    outcomes: list[object] = []
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        relaying = stage.start(scene.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(stage, outcomes), scene.post())
            await stage.until(BROADCAST, 1)
            relaying.cancel()
            await scene.anvil.call("anvil_dropAllTransactions")  # only a process that follows the account rebroadcasts
            stage.start(scene.relayer, replacements_only=True)
            callers.start_soon(relay_into(stage, outcomes), scene.post())
            await stage.until("select count(*) = 1 from relays where state = 'queued'")
            stage.start(successor)
            await stage.until(BROADCAST, 2)
            await mine_until_ended(stage, scene.anvil)
        assert [type(outcome) for outcome in outcomes] == [RelayMined, RelayMined]
        await scene.check(stage)
        async with stage.database.connection() as connection:
            uses = await read_account_usages(connection, CHAIN_ID)
        assert [(use.account, use.pending_count) for use in uses] == [
            (successor.address, 0),
            (scene.relayer.address, 0),
        ]
        sent = "select count(*) from relay_txs where account = $1"
        assert [await stage.fetchval(sent, wallet.address) for wallet in (scene.relayer, successor)] == [1, 1]


async def test_drain_rebroadcasts_and_ends_when_nothing_is_pending(scene: Scene) -> None:
    config = configured(scene.world, scene.database_url)
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        relaying = stage.start(scene.relayer)
        async with anyio.create_task_group() as tasks, stage.relayed(scene.post()):
            await stage.until(BROADCAST, 1)
            relaying.cancel()
            await scene.anvil.call("anvil_dropAllTransactions")
            tasks.start_soon(drain, config, 0.0)
            await until_pooled(scene.anvil)
            await mine_until_ended(stage, scene.anvil)
        async with stage.database.connection() as connection:
            (use,) = await read_account_usages(connection, CHAIN_ID)
        assert (use.account, use.pending_count) == (scene.relayer.address, 0)


async def test_deployment_that_never_relayed_has_no_accounts(scene: Scene) -> None:
    async with scene.stage() as stage, stage.database.connection() as connection:
        assert await read_account_usages(connection, CHAIN_ID) == []
