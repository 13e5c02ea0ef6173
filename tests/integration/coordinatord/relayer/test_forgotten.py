"""Transactions, mined or pending, that a failover to an asynchronous standby removed from the database."""

from typing import Any

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.anvil import Anvil
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops, hexed
from tests.integration.coordinatord.relayer.running import BROADCAST, Stage, mine_until_ended, relay_into, stage
from tests.support.invariants.nonces import nonce_violations
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio

# The account's first transaction stays, so that the database knows the next nonce.
KNOWN = "select nonce, encode(mined_hash, 'hex') as hash from relay_txs where mined_hash is not null order by nonce"
NEWEST = "select '0x' || encode(hash, 'hex') from relay_tx_versions order by created_at desc limit 1"


async def _promises(on: Stage, world: World) -> list[str]:
    async with on.database.connection() as connection:
        return [
            *await relay_violations(connection, on.rpc, stuck_after=0),
            *await nonce_violations(connection, world.anvil.rpc_url, world.market.address_book["deployBlock"]),
        ]


async def _pool(anvil: Anvil, account: str) -> dict[str, str]:
    """Return the hash of each pending transaction of the account, by nonce."""
    content: Any = await anvil.call("txpool_content")
    pending = {address.lower(): txs for address, txs in content["pending"].items()}
    return {nonce: tx["hash"] for nonce, tx in pending.get(account.lower(), {}).items()}


@pytest.mark.parametrize("count", [1, 3])
async def test_mined_transaction_is_adopted_by_its_call_data(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, count: int
) -> None:
    """Both a single op, and several ops in one transaction."""
    async with stage(database_url, world.anvil.rpc_url) as on:
        life = on.start(relayer_wallet)
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        life.cancel()
        relays = [ops.post(client) for _ in range(count)]
        queued = [await on.relaying.submit(relay) for relay in relays]
        life = on.start(relayer_wallet)
        mined = [await on.relaying.wait(one) for one in queued]
        life.cancel()
        async with on.database.connection() as connection:
            before = await connection.fetch(KNOWN)
            await connection.execute(
                "update relays set state = 'queued', tx_id = null, call_index = null, ended_at = null,"
                " mined_block = null, queued_at = clock_timestamp() where tx_id in"
                " (select id from relay_txs where nonce > 0);"
                " delete from relay_tx_versions where tx_id in (select id from relay_txs where nonce > 0);"
                " delete from relay_txs where nonce > 0"
            )
        on.start(relayer_wallet)
        assert [await on.relaying.wait(one) for one in queued] == mined
        async with on.database.connection() as connection:
            assert await connection.fetch(KNOWN) == before
        assert await _promises(on, world) == []


async def test_forgotten_version_of_a_known_transaction_is_adopted(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """The database has the first version of the nonce, and the last version was mined."""
    account = hexed(relayer_wallet.address)
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, mined_within_s=0.2) as on:
        life = on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until("select count(*) >= 2 from relay_tx_versions")
            with anyio.fail_after(30):
                # A version that is deleted while it is being sent would look like one that was never stored.
                while await on.fetchval(NEWEST) not in (await _pool(world.anvil, account)).values():  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            life.cancel()
            await on.fetchval(
                "delete from relay_tx_versions where created_at > (select min(created_at) from relay_tx_versions)"
            )
            await world.anvil.call("evm_mine")
            on.start(relayer_wallet)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select count(*) from relay_txs") == 1
        assert await _promises(on, world) == []


async def test_bytes_in_the_pool_are_not_outbid(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """The relay's row was lost with its transaction. The next relay gets the following nonce."""
    account = hexed(relayer_wallet.address)
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, mined_within_s=0.5) as on:
        life = on.start(relayer_wallet)
        await on.relaying.submit(ops.post(client))
        await on.until(BROADCAST, 1)
        life.cancel()
        forgotten = await _pool(world.anvil, account)
        assert len(forgotten) == 1
        async with on.database.connection() as connection:
            await connection.execute("delete from relays; delete from relay_tx_versions; delete from relay_txs")
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            pool = await _pool(world.anvil, account)
            assert pool.items() >= forgotten.items()
            assert len(pool) == 2
            await mine_until_ended(on, world.anvil)
        assert isinstance(outcomes[0], RelayMined)
        assert await _promises(on, world) == []
