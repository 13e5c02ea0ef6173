"""Nonces of the relayer's account that another process uses, or that a reorg frees."""

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer import in_flight
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.anvil import Anvil
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops, hexed
from tests.integration.coordinatord.relayer.running import BROADCAST, Stage, mine_until_ended, relay_into, stage
from tests.support.faults.rpc_proxy import RefuseTransactions, Rewrite, rpc_proxy
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio


async def lose_the_nonce(on: Stage, anvil: Anvil, account: str) -> object:
    """Mine a foreign transaction with our nonce, wait until the relayer has seen it, and return its hash."""
    await anvil.call("anvil_dropAllTransactions")
    nonce = await anvil.call("eth_getTransactionCount", account, "latest")
    foreign = await anvil.call("eth_sendTransaction", {"from": account, "to": account, "nonce": nonce})
    await anvil.call("evm_mine")
    await on.until("select count(*) = 1 from relay_txs where lost")
    return foreign


async def test_relay_recovers_from_an_outside_transaction(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    account = hexed(relayer_wallet.address)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            await lose_the_nonce(on, world.anvil, account)
            await on.until(BROADCAST, 2)
            await mine_until_ended(on, world.anvil)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select requeued from relays") == 1
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


@pytest.mark.parametrize("successor", ["waits", "was mined"])
async def test_reorg_replacing_an_outside_transaction_mines_once(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, successor: str
) -> None:
    outcomes: list[object] = []
    account = hexed(relayer_wallet.address)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            await lose_the_nonce(on, world.anvil, account)
            await on.until(BROADCAST, 2)
            if successor == "was mined":
                await world.anvil.call("evm_mine")
                await on.until("select bool_and(state = 'mined') from relays")
            lost = await on.fetchval("select raw from relay_tx_versions v join relay_txs t on t.id = tx_id where lost")
            assert isinstance(lost, bytes)
            depth = 1 if successor == "waits" else 2
            await world.anvil.call("anvil_reorg", depth, [[hexed(lost), 0]])
            await on.until("select count(*) = 0 from relay_txs where lost")
            with anyio.fail_after(60):  # until the successor is seen in its new place, too
                while await on.fetchval(
                    "select bool_or(block_number is null) or coalesce(sum(succeeded::int), 0) <> 1 from relay_txs"
                ):
                    await world.anvil.call("evm_mine")
                    await anyio.sleep(0.05)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select state::text from relays") == "mined"
        assert (
            await on.fetchval(
                "select raw from relay_tx_versions v join relay_txs t on hash = mined_hash where succeeded"
            )
            == lost
        )
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def send_in_place(anvil: Anvil, raw: str) -> None:
    """Replace pending transactions with this nonce in the pool by these bytes."""
    with anyio.fail_after(60):
        while True:
            await anvil.call("anvil_dropAllTransactions")
            try:
                await anvil.call("eth_sendRawTransaction", raw)
            except RuntimeError:
                continue
            return


async def first_bytes(on: Stage) -> str:
    """Return the first of two versions of the account's first transaction."""
    await on.until("select count(*) >= 2 from relay_tx_versions v join relay_txs t on t.id = v.tx_id where nonce = 0")
    raw = await on.fetchval(
        "select raw from relay_tx_versions v join relay_txs t on t.id = tx_id where nonce = 0"
        " order by v.created_at limit 1"
    )
    assert isinstance(raw, bytes)
    return hexed(raw)


async def test_former_version_mined_while_down_ends_its_relay(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, mined_within_s=0.2) as on:
        life = on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            first = await first_bytes(on)
            life.cancel()
            await send_in_place(world.anvil, first)
            await world.anvil.call("evm_mine")
            on.start(relayer_wallet)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select requeued = 0 from relays")
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_former_version_mined_by_a_reorg_ends_its_relay(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    account = hexed(relayer_wallet.address)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, mined_within_s=0.2) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            first = await first_bytes(on)
            await lose_the_nonce(on, world.anvil, account)
            await on.until("select count(*) = 1 from relay_txs where nonce = 1")
            await world.anvil.call("anvil_reorg", 1, [[first, 0]])
            await on.until("select count(*) = 0 from relay_txs where lost")
            await mine_until_ended(on, world.anvil)
        assert isinstance(outcomes[0], RelayMined)
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_nonces_used_outside_are_skipped(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    account = hexed(relayer_wallet.address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        for _ in range(3):
            await world.anvil.call("eth_sendTransaction", {"from": account, "to": account})
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_nonce_freed_by_the_chain_gets_a_self_transfer(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """A reorg removes an outside transaction for good, and ours depended on it."""
    account = hexed(relayer_wallet.address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        await world.anvil.call("eth_sendTransaction", {"from": account, "to": account})
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        await world.anvil.call("anvil_reorg", 2, [])
        await on.until("select count(*) = 1 from relay_txs where purpose = 'fill' and block_number is not null")
        await on.until("select bool_and(state = 'mined') from relays")
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_nonce_freed_twice_gets_the_same_self_transfer(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """With unchanged fees, signing again gives the same bytes."""
    account, anvil = hexed(relayer_wallet.address), world.anvil
    async with (
        mining_by_hand(anvil),
        stage(database_url, anvil.rpc_url) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(relayer_wallet)
        callers.start_soon(on.relaying.relay, ops.post(client))
        await on.until(BROADCAST, 1)
        foreign = await anvil.call("eth_getRawTransactionByHash", await lose_the_nonce(on, anvil, account))
        await anvil.call("anvil_setNextBlockBaseFeePerGas", hex(10**9))
        await anvil.call("anvil_reorg", 1, [])
        await on.until("select not lost from relay_txs where nonce = 0")
        await anvil.call("anvil_reorg", 1, [[foreign, 0]])
        await on.until("select lost from relay_txs where nonce = 0")
        await anvil.call("anvil_setNextBlockBaseFeePerGas", hex(10**9))
        await anvil.call("anvil_reorg", 1, [])
        await on.until("select not lost from relay_txs where nonce = 0")
        await mine_until_ended(on, anvil)
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_bytes_mined_after_a_self_transfer_end_their_relay(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    account, anvil = hexed(relayer_wallet.address), world.anvil
    outcomes: list[object] = []
    async with mining_by_hand(anvil), stage(database_url, anvil.rpc_url) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            ours = await on.fetchval("select raw from relay_tx_versions")
            assert isinstance(ours, bytes)
            await lose_the_nonce(on, anvil, account)
            await anvil.call("anvil_reorg", 1, [])
            await on.until("select not lost and purpose = 'fill' from relay_txs where nonce = 0")
            await send_in_place(anvil, hexed(ours))
            await mine_until_ended(on, anvil)
        assert isinstance(outcomes[0], RelayMined)
        mined = (
            "select v.raw from relays r join relay_txs t on t.id = r.tx_id"
            " join relay_tx_versions v on hash = t.mined_hash"
        )
        assert await on.fetchval(mined) == ours
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_lagging_node_makes_no_nonce_look_lost(
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several nodes behind one endpoint, a current node reports the head, and a lagging node answers the rest."""
    monkeypatch.setattr(in_flight, "MAX_RECEIPT_LAG_S", 0.1)
    behind = (
        Rewrite("eth_getBlockByNumber", lambda _, block: {**block, "transactions": []}),
        Rewrite("eth_getTransactionReceipt", lambda _, __: None),
        Rewrite("eth_getTransactionCount", lambda params, count: "0x0" if params[1] == "latest" else count),
    )
    outcomes: list[object] = []
    async with (
        mining_by_hand(world.anvil),
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(relayer_wallet)
        callers.start_soon(relay_into(on, outcomes), ops.post(client))
        await on.until(BROADCAST, 1)
        with proxy.fault(*behind):
            await world.anvil.call("evm_mine")
            asked = proxy.seen("eth_getTransactionReceipt")
            while proxy.seen("eth_getTransactionReceipt") < asked + 3:  # noqa: ASYNC110 - the proxy counts, it does not tell
                await anyio.sleep(0.05)
        await mine_until_ended(on, world.anvil)
        assert await on.fetchval("select count(*) from relay_txs where lost") == 0
        assert await on.fetchval("select requeued from relays") == 0


async def test_late_receipt_of_a_former_version_ends_the_relay(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    withheld = (
        Rewrite("eth_getBlockByNumber", lambda _, block: {**block, "transactions": []}),
        Rewrite("eth_getTransactionReceipt", lambda _, __: None),
    )
    outcomes: list[object] = []
    anvil = world.anvil
    async with (
        mining_by_hand(anvil),
        rpc_proxy(anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, mined_within_s=0.2) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(relayer_wallet)
        callers.start_soon(relay_into(on, outcomes), ops.post(client))
        first = await first_bytes(on)
        with proxy.fault(*withheld, RefuseTransactions(lambda raw: hexed(raw) != first, "already known")):
            await send_in_place(anvil, first)
            await anvil.call("evm_mine")
            await on.until("select count(*) = 1 from relay_txs where lost")
        await on.until("select block_number is not null and not lost from relay_txs where nonce = 0")
        await mine_until_ended(on, anvil)
        assert await on.fetchval(
            "select mined_hash = v.hash from relay_txs join relay_tx_versions v on tx_id = id"
            " where nonce = 0 order by v.created_at limit 1"
        )
