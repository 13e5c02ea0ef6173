"""A replaced relayer account finishes its pending transactions and sends nothing new."""

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.transactions_sql import read_account_usages
from coordinatord.run.drain import drain
from devnet.accounts import DevWallets
from devnet.anvil import CHAIN_ID
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand, until_pooled
from tests.integration.coordinatord.relayer.ops import Ops, signer
from tests.integration.coordinatord.relayer.running import BROADCAST, mine_until_ended, relay_into, stage
from tests.integration.coordinatord.scene.stage import configured
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio


async def test_replaced_account_is_followed_to_its_end(
    *, world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, wallets: DevWallets, client: Wallet
) -> None:
    successor = signer(wallets.with_role("relayer")[1])
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        relaying = on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            relaying.cancel()
            await world.anvil.call("anvil_dropAllTransactions")  # only a process that follows the account rebroadcasts
            on.start(relayer_wallet, replacements_only=True)
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until("select count(*) = 1 from relays where state = 'queued'")
            on.start(successor)
            await on.until(BROADCAST, 2)
            await mine_until_ended(on, world.anvil)
        assert [type(outcome) for outcome in outcomes] == [RelayMined, RelayMined]
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []
            uses = await read_account_usages(connection, CHAIN_ID)
        assert [(use.account, use.pending_count) for use in uses] == [
            (successor.address, 0),
            (relayer_wallet.address, 0),
        ]
        sent = "select count(*) from relay_txs where account = $1"
        assert [await on.fetchval(sent, wallet.address) for wallet in (relayer_wallet, successor)] == [1, 1]


async def test_drain_rebroadcasts_and_ends_when_nothing_is_pending(
    *, world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    config = configured(world, database_url)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        relaying = on.start(relayer_wallet)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            relaying.cancel()
            await world.anvil.call("anvil_dropAllTransactions")
            tasks.start_soon(drain, config, 0.0)
            await until_pooled(world.anvil)
            await mine_until_ended(on, world.anvil)
        assert [type(outcome) for outcome in outcomes] == [RelayMined]
        async with on.database.connection() as connection:
            (use,) = await read_account_usages(connection, CHAIN_ID)
        assert (use.account, use.pending_count) == (relayer_wallet.address, 0)


async def test_deployment_that_never_relayed_has_no_accounts(world: World, database_url: str) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on, on.database.connection() as connection:
        assert await read_account_usages(connection, CHAIN_ID) == []
