"""What transactions of many ops plan to use, beside what they use and what the chain lets one use."""

from collections.abc import Sequence

import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.tx_size import TX_GAS_CAP
from coordinatord.chain.rpc.client import quantity
from coordinatord.storage.database.connections import Connection
from devnet.contracts import at, connected
from devnet.world import World
from tests.faults.rpc_proxy import Rewrite, rpc_proxy
from tests.integration.coordinatord.relayer.ops import Ops, hexed, signer
from tests.integration.coordinatord.relayer.running import Stage, stage
from tests.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio

MANY = 64


@attrs.frozen
class Used:
    relays: int
    planned: int
    used: int


async def relayed_at_once(on: Stage, relays: Sequence[NewRelay]) -> list[Used]:
    """The transactions that these relays, queued together, were mined in; all of them took effect."""

    async def body(connection: Connection) -> None:
        await outbox_sql.submit_all(connection, relays, max_depth=4096)

    first = await on.fetchval("select coalesce(max(id), 0) from relay_txs")
    await on.database.transact(body)
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
        found.append(Used(row["relays"], row["gas"], quantity(receipt["gasUsed"])))
    return found


async def with_room_for_many_claims(world: World, operator: str) -> None:
    async with connected(world.anvil.rpc_url) as chain:
        registry = at(chain, "ProviderRegistry", world.market.providers)
        now = (await chain.web3.eth.get_block("latest"))["timestamp"] + 1
        await chain.send(registry, operator, "requestCapacity", 1000, now, b"")
        await chain.send(registry, world.cast.admin.address, "setCeiling", world.market.provider_ids[operator], 1000)


async def test_planned_gas_follows_what_is_used_and_the_first_transactions_fit_under_the_cap(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    await with_room_for_many_claims(world, world.cast.with_role("provider")[0].address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        for warm in (False, True):
            posts = [ops.post(client) for _ in range(MANY)]
            for relays in (
                posts,
                [ops.claim(provider, post.subject) for post in posts],
                [ops.settle(provider, post.subject) for post in posts],
            ):
                found = await relayed_at_once(on, relays)
                assert all(tx.planned <= TX_GAS_CAP for tx in found)
                assert all(tx.used <= tx.planned for tx in found)
                if warm:
                    assert [tx.relays for tx in found] == [MANY]
                    assert found[0].planned <= 1.2 * found[0].used
        assert await on.fetchval("select count(*) = 0 from relay_txs where not succeeded")


async def test_a_transaction_that_starves_goes_again_with_more_gas_and_refuses_no_op(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """A node whose receipts say too little teaches shares that are too small."""
    lie = Rewrite("eth_getBlockReceipts", lambda _, receipts: [_cheap(receipt) for receipt in receipts])
    alone = Rewrite("eth_getTransactionReceipt", lambda _, receipt: _cheap(receipt))
    async with rpc_proxy(world.anvil.rpc_url) as proxy, stage(database_url, proxy.url) as on:
        on.start(relayer_wallet)
        with proxy.fault(lie, alone):
            await relayed_at_once(on, [ops.post(client) for _ in range(MANY)])
        await relayed_at_once(on, [ops.post(client) for _ in range(MANY)])
        assert await on.fetchval("select count(*) > 0 from relay_txs where not succeeded")
        assert await on.fetchval("select max(requeued) = 1 from relays")
        await relayed_at_once(on, [ops.post(client) for _ in range(MANY)])
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


def _cheap(receipt: dict[str, object]) -> dict[str, object]:
    return {**receipt, "gasUsed": hex(int(str(receipt["gasUsed"]), 16) // 3)}


async def test_as_many_ops_ride_together_when_they_build_on_one_another(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    """What is known of them is what each uses by itself, about three times what it adds to a transaction of many; and
    after that, what their like used together."""
    await with_room_for_many_claims(world, world.cast.with_role("provider")[0].address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        for most in (3.5, 1.2, 1.2):
            posts = [ops.post(client) for _ in range(MANY // 3)]
            claims = [ops.claim(provider, post.subject) for post in posts]
            found = await relayed_at_once(on, posts + claims + [ops.settle(provider, post.subject) for post in posts])
            assert [tx.relays for tx in found] == [3 * len(posts)]
            assert found[0].used <= found[0].planned <= min(TX_GAS_CAP, most * found[0].used)
        # Ops of two kinds that do not build on one another, and in other proportions: planned by what is known of each.
        earlier = [ops.post(client) for _ in range(MANY // 2)]
        await relayed_at_once(on, earlier)
        claims = [ops.claim(provider, post.subject) for post in earlier]
        for some in (claims[: MANY // 4], claims[MANY // 4 :]):
            found = await relayed_at_once(on, [*some, *(ops.post(client) for _ in range(MANY // 2))])
            assert all(tx.used <= tx.planned for tx in found)
        assert found[0].planned <= 1.2 * found[0].used
        assert await on.fetchval("select count(*) = 0 from relay_txs where not succeeded")


async def test_ops_whose_state_makes_them_dearer_than_their_like_take_effect_all_the_same(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    """What is known is known of one client and one provider; then come others, whose first look at each of their slots
    is dear. All are signed in transactions of many, and none is refused for the gas that was planned."""
    other_provider, other_client = (signer(world.cast.with_role(role)[1]) for role in ("provider", "client"))
    for wallet in world.cast.with_role("provider")[:2]:
        await with_room_for_many_claims(world, wallet.address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        for _ in range(3):
            posts = [ops.post(client) for _ in range(MANY)]
            await relayed_at_once(on, posts)
            await relayed_at_once(on, [ops.claim(provider, post.subject) for post in posts])
            await relayed_at_once(on, [ops.settle(provider, post.subject) for post in posts])
        posts = [ops.post(other_client) for _ in range(MANY)]
        for relays in (
            posts,
            [ops.claim(other_provider, post.subject) for post in posts],
            [ops.settle(other_provider, post.subject) for post in posts],
        ):
            (found,) = await relayed_at_once(on, relays)
            assert (found.relays, found.used <= found.planned <= 1.25 * found.used) == (MANY, True)
        assert await on.fetchval("select count(*) = 0 from relay_txs where not succeeded")
