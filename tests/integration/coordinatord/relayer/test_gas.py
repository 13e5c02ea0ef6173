"""Planned gas of transactions with many ops, compared with the gas used and with the chain's limits."""

from collections.abc import Sequence

import attrs
import pytest

from coordinatord.chain.relayer.op_gas import GAS_BY_KIND
from coordinatord.chain.relayer.outbox_sql import NewRelay, RelayKind
from coordinatord.chain.rpc.client import decode_quantity
from devnet.anvil import BLOCK_GAS_LIMIT
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.relayer.ops import hexed, signer
from tests.integration.coordinatord.relayer.running import Scene, Stage

MANY = 64
MAX_PLANNED = BLOCK_GAS_LIMIT * 15 // 100  # so that a full block uses 85 % of its gas


@attrs.frozen
class TxGas:
    """Gas of one mined transaction, and the number of relays that it carried."""

    relays: int
    planned_gas: int
    used_gas: int


async def relay_together(stage: Stage, relays: Sequence[NewRelay]) -> list[TxGas]:
    """Queue these relays together, and wait until all are mined.

    Return the gas of each transaction that carried them.
    """
    last_old_id = await stage.fetchval("select coalesce(max(id), 0) from relay_txs")
    await stage.queue(relays)
    await stage.until("select count(*) = 0 from relays where state in ('queued', 'signed')")
    assert await stage.fetchval("select bool_and(state = 'mined') from relays")
    async with stage.database.connection() as connection:
        rows = await connection.fetch(
            "select gas, mined_hash, (select count(*) from relays r where r.tx_id = t.id) as relays from relay_txs t"
            " where id > $1 order by nonce",
            last_old_id,
        )
    gas_of_transactions = []
    for row in rows:
        receipt = await stage.rpc.call_as(dict[str, object], "eth_getTransactionReceipt", hexed(row["mined_hash"]))
        gas_of_transactions.append(TxGas(row["relays"], row["gas"], decode_quantity(receipt["gasUsed"])))
    return gas_of_transactions


async def with_room_for_many_claims(world: World, operator: str) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        registry = contract_at(chain, "ProviderRegistry", world.market.providers)
        now = (await chain.web3.eth.get_block("latest"))["timestamp"] + 1
        await chain.send(registry, operator, "requestCapacity", 1000, now, b"")
        await chain.send(registry, world.wallets.admin.address, "setCeiling", world.market.provider_ids[operator], 1000)


async def test_starved_relay_is_resent_with_more_gas(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain's token costs more gas than the table says. The second relay's plan uses the cost measured in the
    first."""
    monkeypatch.setitem(GAS_BY_KIND, RelayKind.POST, (150_000, 25_000))
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        await relay_together(stage, [scene.post() for _ in range(MANY)])
        assert await stage.fetchval("select count(*) from relay_txs where not succeeded") == 1
        assert await stage.fetchval("select max(requeued) = 1 from relays")
        for _ in range(2):
            (tx_gas,) = await relay_together(stage, [scene.post() for _ in range(MANY)])
            assert tx_gas.used_gas <= tx_gas.planned_gas
        await scene.check(stage)


async def test_relays_fit_after_an_admin_raises_token_gas(scene: Scene) -> None:
    async with connect_to_chain(scene.anvil.rpc_url) as chain:
        registry = contract_at(chain, "JobRegistry", scene.world.market.jobs)
        await chain.send(registry, scene.world.wallets.admin.address, "setTokenGas", 1_500_000)
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        posts = [scene.post() for _ in range(16)]
        claims = [scene.claim(post.subject) for post in posts]
        await relay_together(stage, posts + claims)  # as chains, which are possible once claims have been estimated
        (tx_gas,) = await relay_together(stage, [scene.settle(post.subject) for post in posts])
        assert tx_gas.relays == 16
        assert await stage.fetchval("select count(*) = 0 from relay_txs where not succeeded")


async def test_chains_are_one_transaction_within_the_plan(scene: Scene) -> None:
    await with_room_for_many_claims(scene.world, scene.world.wallets.with_role("provider")[0].address)
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        posts = [scene.post() for _ in range(MANY // 3)]
        claims = [scene.claim(post.subject) for post in posts]
        (tx_gas,) = await relay_together(stage, posts + claims + [scene.settle(post.subject) for post in posts])
        assert tx_gas.relays == 3 * len(posts)
        assert tx_gas.used_gas <= tx_gas.planned_gas <= MAX_PLANNED
        # Ops of two independent kinds.
        earlier = [scene.post() for _ in range(MANY // 2)]
        await relay_together(stage, earlier)
        claims = [scene.claim(post.subject) for post in earlier]
        (tx_gas,) = await relay_together(stage, [*claims, *(scene.post() for _ in range(MANY // 2))])
        assert tx_gas.used_gas <= tx_gas.planned_gas <= MAX_PLANNED
        assert await stage.fetchval("select count(*) = 0 from relay_txs where not succeeded")


async def test_ops_of_many_wallets_fit_the_plan(scene: Scene) -> None:
    """Each client and each provider has separate storage slots, and the first access of each is expensive."""
    providers, clients = (
        [signer(wallet) for wallet in scene.world.wallets.with_role(role)] for role in ("provider", "client")
    )
    for wallet in scene.world.wallets.with_role("provider"):
        await with_room_for_many_claims(scene.world, wallet.address)
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        posts = [scene.ops.post(clients[number % len(clients)]) for number in range(MANY)]
        by = [providers[number % len(providers)] for number in range(MANY)]
        for relays in (
            posts,
            [scene.ops.claim(provider, post.subject) for provider, post in zip(by, posts, strict=True)],
            [scene.ops.settle(provider, post.subject) for provider, post in zip(by, posts, strict=True)],
        ):
            (tx_gas,) = await relay_together(stage, relays)
            assert tx_gas.relays == MANY
            assert tx_gas.used_gas <= tx_gas.planned_gas <= MAX_PLANNED
        assert await stage.fetchval("select count(*) = 0 from relay_txs where not succeeded")
