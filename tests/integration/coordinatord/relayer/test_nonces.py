"""Nonces of the relayer's account that another process uses, or that a reorg frees."""

import anyio
import pytest

from coordinatord.chain.relayer.relaying import RelayMined
from devnet.anvil import Anvil
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import hexed
from tests.integration.coordinatord.relayer.running import BROADCAST, Bench, Stage, mine_until_ended, relay_into
from tests.support.faults.rpc_proxy import RefuseTransactions, Rewrite, rpc_proxy

pytestmark = pytest.mark.anyio


async def lose_the_nonce(on: Stage, anvil: Anvil, account: str) -> object:
    """Mine a foreign transaction with our nonce, wait until the relayer has seen it, and return its hash."""
    await anvil.call("anvil_dropAllTransactions")
    nonce = await anvil.call("eth_getTransactionCount", account, "latest")
    foreign = await anvil.call("eth_sendTransaction", {"from": account, "to": account, "nonce": nonce})
    await anvil.call("evm_mine")
    await on.until("select count(*) = 1 from relay_txs where lost")
    return foreign


@pytest.mark.parametrize("successor", ["waits", "was mined"])
async def test_reorg_replacing_an_outside_transaction_mines_once(bench: Bench, *, successor: str) -> None:
    outcomes: list[object] = []
    account = hexed(bench.relayer.address)
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), bench.post())
            await on.until(BROADCAST, 1)
            await lose_the_nonce(on, bench.anvil, account)
            await on.until(BROADCAST, 2)
            if successor == "was mined":
                await bench.anvil.call("evm_mine")
                await on.until("select bool_and(state = 'mined') from relays")
            lost = await on.fetchval("select raw from relay_tx_versions v join relay_txs t on t.id = tx_id where lost")
            assert isinstance(lost, bytes)
            depth = 1 if successor == "waits" else 2
            await bench.anvil.call("anvil_reorg", depth, [[hexed(lost), 0]])
            await on.until("select count(*) = 0 from relay_txs where lost")
            with anyio.fail_after(60):  # until the successor is seen in its new place, too
                while await on.fetchval(
                    "select bool_or(block_number is null) or coalesce(sum(succeeded::int), 0) <> 1 from relay_txs"
                ):
                    await bench.anvil.call("evm_mine")
                    await anyio.sleep(0.05)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select state::text from relays") == "mined"
        assert (
            await on.fetchval(
                "select raw from relay_tx_versions v join relay_txs t on hash = mined_hash where succeeded"
            )
            == lost
        )
        assert await on.relay_violations() == []


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


async def test_nonces_used_outside_are_skipped(bench: Bench) -> None:
    account = hexed(bench.relayer.address)
    async with bench.stage() as on:
        on.start(bench.relayer)
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        for _ in range(3):
            await bench.anvil.call("eth_sendTransaction", {"from": account, "to": account})
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        assert await on.relay_violations() == []


async def test_nonce_freed_by_the_chain_gets_a_self_transfer(bench: Bench) -> None:
    """A reorg removes an outside transaction for good, and ours depended on it."""
    account = hexed(bench.relayer.address)
    async with bench.stage() as on:
        on.start(bench.relayer)
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        await bench.anvil.call("eth_sendTransaction", {"from": account, "to": account})
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        await bench.anvil.call("anvil_reorg", 2, [])
        await on.until("select count(*) = 1 from relay_txs where purpose = 'fill' and block_number is not null")
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.relay_violations() == []


async def test_nonce_freed_twice_gets_the_same_self_transfer(bench: Bench) -> None:
    """With unchanged fees, signing again gives the same bytes."""
    account, anvil = hexed(bench.relayer.address), bench.anvil
    async with (
        mining_by_hand(anvil),
        bench.stage(anvil.rpc_url) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(bench.relayer)
        callers.start_soon(on.relaying.relay, bench.post())
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
        assert await on.relay_violations() == []


async def test_bytes_mined_after_a_self_transfer_end_their_relay(bench: Bench) -> None:
    account, anvil = hexed(bench.relayer.address), bench.anvil
    outcomes: list[object] = []
    async with mining_by_hand(anvil), bench.stage(anvil.rpc_url) as on:
        on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), bench.post())
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
        assert await on.relay_violations() == []


async def test_late_receipt_of_a_former_version_ends_the_relay(bench: Bench) -> None:
    withheld = (
        Rewrite("eth_getBlockByNumber", lambda _, block: {**block, "transactions": []}),
        Rewrite("eth_getTransactionReceipt", lambda _, __: None),
    )
    outcomes: list[object] = []
    anvil = bench.anvil
    async with (
        mining_by_hand(anvil),
        rpc_proxy(anvil.rpc_url) as proxy,
        bench.stage(proxy.url, mined_within_s=0.2) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(bench.relayer)
        callers.start_soon(relay_into(on, outcomes), bench.post())
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
