"""An account without its role among others, and an account that loses the role while transactions are pending."""

import anyio
import pytest
from eth_utils.address import to_checksum_address

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.role import relayer_role_of
from devnet.accounts import DevWallets
from devnet.contracts import SigningNode, connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand, until_pooled
from tests.integration.coordinatord.relayer.ops import Ops, signer
from tests.integration.coordinatord.relayer.running import relay_into, stage
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio


def checksum(account: bytes) -> str:
    return str(to_checksum_address(account))


async def set_role(chain: SigningNode, world: World, account: bytes, allowed: bool) -> None:
    for name, address in (("JobRegistry", world.market.jobs), ("ProviderRegistry", world.market.providers)):
        await chain.send(
            contract_at(chain, name, address), world.wallets.admin.address, "setRelayer", checksum(account), allowed
        )


async def test_account_without_role_leaves_posts_to_another(
    world: World, database_url: str, ops: Ops, client: Wallet, wallets: DevWallets
) -> None:
    without, other = (signer(account) for account in wallets.with_role("relayer")[:2])
    async with connect_to_chain(world.anvil.rpc_url) as chain, stage(database_url, world.anvil.rpc_url) as on:
        await set_role(chain, world, without.address, False)
        role = relayer_role_of(ops.book, without.address)
        on.start(without, role)
        outcomes: list[object] = []
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until("select count(*) = 1 from relays where state = 'queued'")
            with anyio.fail_after(60):
                while not role.is_missing:  # noqa: ASYNC110 - nobody tells
                    await anyio.sleep(0.02)
            on.start(other, relayer_role_of(ops.book, other.address))
        [outcome] = outcomes
        assert isinstance(outcome, RelayMined)
        assert await on.fetchval("select array_agg(account) from relay_txs") == [other.address]


async def test_posts_reverted_by_role_loss_are_mined_later(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain, stage(database_url, world.anvil.rpc_url) as on:
        jobs = contract_at(chain, "JobRegistry", world.market.jobs)
        revoking = {
            "from": world.wallets.admin.address,
            "to": world.market.jobs,
            "data": jobs.encode_abi("setRelayer", args=[checksum(relayer_wallet.address), False]),
            "gas": hex(200_000),
            "maxFeePerGas": hex(10**12),
            "maxPriorityFeePerGas": hex(10**11),
        }
        outcomes: list[object] = []
        async with anyio.create_task_group() as callers:
            async with mining_by_hand(world.anvil):
                on.start(relayer_wallet, relayer_role_of(ops.book, relayer_wallet.address))
                for _ in range(2):
                    callers.start_soon(relay_into(on, outcomes), ops.post(client))
                await until_pooled(world.anvil)
                await world.anvil.call("eth_sendTransaction", revoking)  # higher fee, so it is mined first
                await world.anvil.call("evm_mine")
                await on.until("select bool_and(state = 'queued') and count(*) = 2 from relays")
            assert outcomes == []
            await set_role(chain, world, relayer_wallet.address, True)
        assert all(isinstance(outcome, RelayMined) for outcome in outcomes)
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []
