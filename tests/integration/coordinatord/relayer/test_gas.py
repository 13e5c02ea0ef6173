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
class Used:
    relays: int
    planned: int
    used: int


async def relayed_at_once(on: Stage, relays: Sequence[NewRelay]) -> list[Used]:
    """Queue these relays together. Return their transactions, and check that all took effect."""
    first = await on.fetchval("select coalesce(max(id), 0) from relay_txs")
    await on.queue(relays)
    await on.until("select count(*) = 0 from relays where state in ('queued', 'signed')")
    assert await on.fetchval("select bool_and(state = 'mined') from relays")
    async with on.database.connection() as connection:
        rows = await connection.fetch(
            "select gas, mined_hash, (select count(*) from relays r where r.tx_id = t.id) as relays from relay_txs t"
            " where id > $1 order by nonce",
            first,
        )
    found = []
    for row in rows:
        receipt = await on.rpc.call_as(dict[str, object], "eth_getTransactionReceipt", hexed(row["mined_hash"]))
        found.append(Used(row["relays"], row["gas"], decode_quantity(receipt["gasUsed"])))
    return found


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
    async with scene.stage() as on:
        on.start(scene.relayer)
        await relayed_at_once(on, [scene.post() for _ in range(MANY)])
        assert await on.fetchval("select count(*) from relay_txs where not succeeded") == 1
        assert await on.fetchval("select max(requeued) = 1 from relays")
        for _ in range(2):
            (found,) = await relayed_at_once(on, [scene.post() for _ in range(MANY)])
            assert found.used <= found.planned
        await scene.check(on)


async def test_relays_fit_after_an_admin_raises_token_gas(scene: Scene) -> None:
    async with connect_to_chain(scene.anvil.rpc_url) as chain:
        registry = contract_at(chain, "JobRegistry", scene.world.market.jobs)
        await chain.send(registry, scene.world.wallets.admin.address, "setTokenGas", 1_500_000)
    async with scene.stage() as on:
        on.start(scene.relayer)
        posts = [scene.post() for _ in range(16)]
        claims = [scene.claim(post.subject) for post in posts]
        await relayed_at_once(on, posts + claims)  # as chains, which are possible once claims have been estimated
        (found,) = await relayed_at_once(on, [scene.settle(post.subject) for post in posts])
        assert found.relays == 16
        assert await on.fetchval("select count(*) = 0 from relay_txs where not succeeded")


async def test_chains_are_one_transaction_within_the_plan(scene: Scene) -> None:
    await with_room_for_many_claims(scene.world, scene.world.wallets.with_role("provider")[0].address)
    async with scene.stage() as on:
        on.start(scene.relayer)
        posts = [scene.post() for _ in range(MANY // 3)]
        claims = [scene.claim(post.subject) for post in posts]
        (found,) = await relayed_at_once(on, posts + claims + [scene.settle(post.subject) for post in posts])
        assert found.relays == 3 * len(posts)
        assert found.used <= found.planned <= MAX_PLANNED
        # Ops of two independent kinds.
        earlier = [scene.post() for _ in range(MANY // 2)]
        await relayed_at_once(on, earlier)
        claims = [scene.claim(post.subject) for post in earlier]
        (found,) = await relayed_at_once(on, [*claims, *(scene.post() for _ in range(MANY // 2))])
        assert found.used <= found.planned <= MAX_PLANNED
        assert await on.fetchval("select count(*) = 0 from relay_txs where not succeeded")


async def test_ops_of_many_wallets_fit_the_plan(scene: Scene) -> None:
    """Each client and each provider has separate storage slots, and the first access of each is expensive."""
    providers, clients = (
        [signer(wallet) for wallet in scene.world.wallets.with_role(role)] for role in ("provider", "client")
    )
    for wallet in scene.world.wallets.with_role("provider"):
        await with_room_for_many_claims(scene.world, wallet.address)
    async with scene.stage() as on:
        on.start(scene.relayer)
        posts = [scene.ops.post(clients[number % len(clients)]) for number in range(MANY)]
        by = [providers[number % len(providers)] for number in range(MANY)]
        for relays in (
            posts,
            [scene.ops.claim(provider, post.subject) for provider, post in zip(by, posts, strict=True)],
            [scene.ops.settle(provider, post.subject) for provider, post in zip(by, posts, strict=True)],
        ):
            (found,) = await relayed_at_once(on, relays)
            assert found.relays == MANY
            assert found.used <= found.planned <= MAX_PLANNED
        assert await on.fetchval("select count(*) = 0 from relay_txs where not succeeded")
