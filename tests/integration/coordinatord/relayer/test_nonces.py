"""Nonces that another process used, that a reorg freed, or that a failover removed from the database."""

from typing import Any

import anyio
import pytest

from coordinatord.chain.relayer.relaying import RelayMined
from devnet.anvil import Anvil
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import hexed
from tests.integration.coordinatord.relayer.running import BROADCAST, Scene, Stage, mine_until_ended
from tests.support.invariants.nonces import nonce_violations
from tests.support.invariants.relays import relay_violations


async def lose_the_nonce(stage: Stage, scene: Scene) -> object:
    """Mine a foreign transaction with our nonce, wait until the relayer has seen it, and return its hash."""
    await scene.anvil.call("anvil_dropAllTransactions")
    nonce = await scene.anvil.call("eth_getTransactionCount", scene.account, "latest")
    outside = {"from": scene.account, "to": scene.account, "nonce": nonce}
    foreign = await scene.anvil.call("eth_sendTransaction", outside)
    await scene.anvil.call("evm_mine")
    await stage.until("select count(*) = 1 from relay_txs where lost")
    return foreign


@pytest.mark.parametrize("successor", ["waits", "was mined"])
async def test_reorg_replacing_an_outside_transaction_mines_once(scene: Scene, successor: str) -> None:
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            await stage.until(BROADCAST, 1)
            await lose_the_nonce(stage, scene)
            await stage.until(BROADCAST, 2)
            if successor == "was mined":
                await scene.anvil.call("evm_mine")
                await stage.until("select bool_and(state = 'mined') from relays")
            lost = await stage.fetchval(
                "select raw from relay_tx_versions v join relay_txs t on t.id = tx_id where lost"
            )
            assert isinstance(lost, bytes)
            depth = 1 if successor == "waits" else 2
            await scene.anvil.call("anvil_reorg", depth, [[hexed(lost), 0]])
            await stage.until("select count(*) = 0 from relay_txs where lost")
            with anyio.fail_after(60):  # until the successor is seen in its new place, too
                while await stage.fetchval(
                    "select bool_or(block_number is null) or coalesce(sum(succeeded::int), 0) <> 1 from relay_txs"
                ):
                    await scene.anvil.call("evm_mine")
                    await anyio.sleep(0.05)
        assert await stage.fetchval("select state::text from relays") == "mined"
        assert (
            await stage.fetchval(
                "select raw from relay_tx_versions v join relay_txs t on hash = mined_hash where succeeded"
            )
            == lost
        )
        await scene.check(stage)


async def test_nonces_used_outside_are_skipped(scene: Scene) -> None:
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        for _ in range(3):
            await scene.anvil.call("eth_sendTransaction", {"from": scene.account, "to": scene.account})
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await scene.check(stage)


async def test_nonce_freed_by_the_chain_gets_a_self_transfer(scene: Scene) -> None:
    """A reorg removes an outside transaction for good, and ours depended on it."""
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await scene.anvil.call("eth_sendTransaction", {"from": scene.account, "to": scene.account})
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await scene.anvil.call("anvil_reorg", 2, [])
        await stage.until("select count(*) = 1 from relay_txs where purpose = 'fill' and block_number is not null")
        await stage.until("select bool_and(state = 'mined') from relays")
        await scene.check(stage)


async def test_nonce_freed_twice_gets_the_same_self_transfer(scene: Scene) -> None:
    """With unchanged fees, signing again gives the same bytes."""
    anvil = scene.anvil
    async with (
        mining_by_hand(anvil),
        scene.stage(anvil.rpc_url) as stage,
        anyio.create_task_group() as callers,
    ):
        stage.start(scene.relayer)
        callers.start_soon(stage.relaying.relay, scene.post())
        await stage.until(BROADCAST, 1)
        foreign = await anvil.call("eth_getRawTransactionByHash", await lose_the_nonce(stage, scene))
        await anvil.call("anvil_setNextBlockBaseFeePerGas", hex(10**9))
        await anvil.call("anvil_reorg", 1, [])
        await stage.until("select not lost from relay_txs where nonce = 0")
        await anvil.call("anvil_reorg", 1, [[foreign, 0]])
        await stage.until("select lost from relay_txs where nonce = 0")
        await anvil.call("anvil_setNextBlockBaseFeePerGas", hex(10**9))
        await anvil.call("anvil_reorg", 1, [])
        await stage.until("select not lost from relay_txs where nonce = 0")
        await mine_until_ended(stage, anvil)
        await scene.check(stage)


# The account's first transaction stays, so that the database knows the next nonce.
KNOWN = "select nonce, encode(mined_hash, 'hex') as hash from relay_txs where mined_hash is not null order by nonce"
NEWEST = "select '0x' || encode(hash, 'hex') from relay_tx_versions order by created_at desc limit 1"


async def _promises(stage: Stage, world: World) -> list[str]:
    async with stage.database.connection() as connection:
        return [
            *await relay_violations(connection, stage.rpc, stuck_after=0),
            *await nonce_violations(connection, world.anvil.rpc_url, world.market.address_book["deployBlock"]),
        ]


async def _pool(anvil: Anvil, account: str) -> dict[str, str]:
    """Return the hash of each pending transaction of the account, by nonce."""
    content: Any = await anvil.call("txpool_content")
    pending = {address.lower(): txs for address, txs in content["pending"].items()}
    return {nonce: tx["hash"] for nonce, tx in pending.get(account.lower(), {}).items()}


@pytest.mark.parametrize("count", [1, 3])
async def test_mined_transaction_is_adopted_by_its_call_data(scene: Scene, count: int) -> None:
    """Both a single op, and several ops in one transaction."""
    async with scene.stage() as stage:
        life = stage.start(scene.relayer)
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        life.cancel()
        relays = [scene.post() for _ in range(count)]
        queued = [await stage.relaying.submit(relay) for relay in relays]
        life = stage.start(scene.relayer)
        mined = [await stage.relaying.wait(one) for one in queued]
        life.cancel()
        async with stage.database.connection() as connection:
            before = await connection.fetch(KNOWN)
            await connection.execute(
                "update relays set state = 'queued', tx_id = null, call_index = null, ended_at = null,"
                " mined_block = null, queued_at = clock_timestamp() where tx_id in"
                " (select id from relay_txs where nonce > 0);"
                " delete from relay_tx_versions where tx_id in (select id from relay_txs where nonce > 0);"
                " delete from relay_txs where nonce > 0"
            )
        stage.start(scene.relayer)
        assert [await stage.relaying.wait(one) for one in queued] == mined
        async with stage.database.connection() as connection:
            assert await connection.fetch(KNOWN) == before
        assert await _promises(stage, scene.world) == []


async def test_forgotten_version_of_a_known_transaction_is_adopted(scene: Scene) -> None:
    """The database has the first version of the nonce, and the last version was mined."""
    async with mining_by_hand(scene.anvil), scene.stage(mined_within_s=0.2) as stage:
        life = stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            await stage.until("select count(*) >= 2 from relay_tx_versions")
            with anyio.fail_after(30):
                # A version that is deleted while it is being sent would look like one that was never stored.
                while await stage.fetchval(NEWEST) not in (await _pool(scene.anvil, scene.account)).values():  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            life.cancel()
            await stage.fetchval(
                "delete from relay_tx_versions where created_at > (select min(created_at) from relay_tx_versions)"
            )
            await scene.anvil.call("evm_mine")
            stage.start(scene.relayer)
        assert await stage.fetchval("select count(*) from relay_txs") == 1
        assert await _promises(stage, scene.world) == []


async def test_bytes_in_the_pool_are_not_outbid(scene: Scene) -> None:
    """The relay's row was lost with its transaction. The next relay gets the following nonce."""
    async with mining_by_hand(scene.anvil), scene.stage(mined_within_s=0.5) as stage:
        life = stage.start(scene.relayer)
        await stage.relaying.submit(scene.post())
        await stage.until(BROADCAST, 1)
        life.cancel()
        forgotten = await _pool(scene.anvil, scene.account)
        assert len(forgotten) == 1
        async with stage.database.connection() as connection:
            await connection.execute("delete from relays; delete from relay_tx_versions; delete from relay_txs")
        stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            await stage.until(BROADCAST, 1)
            pool = await _pool(scene.anvil, scene.account)
            assert pool.items() >= forgotten.items()
            assert len(pool) == 2
            await mine_until_ended(stage, scene.anvil)
        assert await _promises(stage, scene.world) == []
