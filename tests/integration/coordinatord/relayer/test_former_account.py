"""A replaced relayer account finishes its pending transactions and sends nothing new."""

import anyio
import pytest

from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.transactions_sql import read_account_usages
from coordinatord.run.drain import drain
from devnet.accounts import DevWallets
from devnet.anvil import CHAIN_ID
from tests.integration.coordinatord.relayer.mining import mining_by_hand, until_pooled
from tests.integration.coordinatord.relayer.ops import signer
from tests.integration.coordinatord.relayer.running import BROADCAST, Bench, mine_until_ended, relay_into
from tests.integration.coordinatord.scene.stage import configured

pytestmark = pytest.mark.anyio


async def test_replaced_account_is_followed_to_its_end(bench: Bench, *, wallets: DevWallets) -> None:
    successor = signer(wallets.with_role("relayer")[1])
    outcomes: list[object] = []
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        relaying = on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), bench.post())
            await on.until(BROADCAST, 1)
            relaying.cancel()
            await bench.anvil.call("anvil_dropAllTransactions")  # only a process that follows the account rebroadcasts
            on.start(bench.relayer, replacements_only=True)
            callers.start_soon(relay_into(on, outcomes), bench.post())
            await on.until("select count(*) = 1 from relays where state = 'queued'")
            on.start(successor)
            await on.until(BROADCAST, 2)
            await mine_until_ended(on, bench.anvil)
        assert [type(outcome) for outcome in outcomes] == [RelayMined, RelayMined]
        assert await on.relay_violations() == []
        async with on.database.connection() as connection:
            uses = await read_account_usages(connection, CHAIN_ID)
        assert [(use.account, use.pending_count) for use in uses] == [
            (successor.address, 0),
            (bench.relayer.address, 0),
        ]
        sent = "select count(*) from relay_txs where account = $1"
        assert [await on.fetchval(sent, wallet.address) for wallet in (bench.relayer, successor)] == [1, 1]


async def test_drain_rebroadcasts_and_ends_when_nothing_is_pending(bench: Bench) -> None:
    outcomes: list[object] = []
    config = configured(bench.world, bench.database_url)
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        relaying = on.start(bench.relayer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(relay_into(on, outcomes), bench.post())
            await on.until(BROADCAST, 1)
            relaying.cancel()
            await bench.anvil.call("anvil_dropAllTransactions")
            tasks.start_soon(drain, config, 0.0)
            await until_pooled(bench.anvil)
            await mine_until_ended(on, bench.anvil)
        assert [type(outcome) for outcome in outcomes] == [RelayMined]
        async with on.database.connection() as connection:
            (use,) = await read_account_usages(connection, CHAIN_ID)
        assert (use.account, use.pending_count) == (bench.relayer.address, 0)
