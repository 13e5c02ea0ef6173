"""The books contain all gas of real transactions exactly once, also after reorgs."""

import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.budgets_sql import read_top_spenders
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops
from tests.integration.coordinatord.relayer.running import Stage, mine_until_ended, relay_into, stage

pytestmark = pytest.mark.anyio

BOOKED = "select coalesce(sum(gas), 0)::bigint from gas_bookings"


async def used_on_the_chain(world: World, on: Stage) -> int:
    async with on.database.connection() as connection:
        rows = await connection.fetch("select mined_hash from relay_txs where mined_hash is not null")
    receipts = [await world.anvil.call("eth_getTransactionReceipt", "0x" + row["mined_hash"].hex()) for row in rows]
    return sum(int(receipt["gasUsed"], 16) for receipt in receipts)


async def test_gas_is_booked_again_after_a_reorg(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        on.tasks.start_soon(relay_into(on, outcomes), ops.post(client))
        on.tasks.start_soon(relay_into(on, outcomes), ops.post(client))
        await on.until(
            "select count(*) = 2 from relays r join relay_txs t on t.id = r.tx_id where t.broadcast_at is not null"
        )
        await world.anvil.call("evm_mine")  # one block, which the reorg removes
        await on.until("select count(*) = 2 from relays where state = 'mined'")
        assert await on.fetchval(BOOKED) == await used_on_the_chain(world, on) > 0
        await world.anvil.call("anvil_reorg", 1, [])
        await on.until("select count(*) = 0 from gas_bookings")
        await mine_until_ended(on, world.anvil)
        await on.until("select count(*) = 2 from relays where state = 'mined'")
        assert await on.fetchval(BOOKED) == await used_on_the_chain(world, on) > 0
        async with on.database.connection() as connection:
            (spender,) = await read_top_spenders(connection, 5)
    assert (spender.signer, spender.kind) == (client.address, "post")
    assert all(isinstance(outcome, RelayMined) for outcome in outcomes)
