"""An account without its role among others, and an account that loses the role while transactions are pending."""

import anyio
import pytest
from eth_utils.address import to_checksum_address

from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.role import relayer_role_of
from devnet.accounts import DevWallets
from devnet.contracts import SigningNode, connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand, until_pooled
from tests.integration.coordinatord.relayer.ops import signer
from tests.integration.coordinatord.relayer.running import Bench, relay_into

pytestmark = pytest.mark.anyio


def checksum(account: bytes) -> str:
    return str(to_checksum_address(account))


async def set_role(chain: SigningNode, world: World, account: bytes, allowed: bool) -> None:
    for name, address in (("JobRegistry", world.market.jobs), ("ProviderRegistry", world.market.providers)):
        await chain.send(
            contract_at(chain, name, address), world.wallets.admin.address, "setRelayer", checksum(account), allowed
        )


async def test_account_without_role_leaves_posts_to_another(bench: Bench, wallets: DevWallets) -> None:
    without, other = (signer(account) for account in wallets.with_role("relayer")[:2])
    async with connect_to_chain(bench.anvil.rpc_url) as chain, bench.stage() as on:
        await set_role(chain, bench.world, without.address, False)
        role = relayer_role_of(bench.ops.book, without.address)
        on.start(without, role)
        outcomes: list[object] = []
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), bench.post())
            await on.until("select count(*) = 1 from relays where state = 'queued'")
            with anyio.fail_after(60):
                while not role.is_missing:  # noqa: ASYNC110 - nobody tells
                    await anyio.sleep(0.02)
            on.start(other, relayer_role_of(bench.ops.book, other.address))
        [outcome] = outcomes
        assert isinstance(outcome, RelayMined)
        assert await on.fetchval("select array_agg(account) from relay_txs") == [other.address]


async def test_posts_reverted_by_role_loss_are_mined_later(bench: Bench) -> None:
    async with connect_to_chain(bench.anvil.rpc_url) as chain, bench.stage() as on:
        jobs = contract_at(chain, "JobRegistry", bench.world.market.jobs)
        revoking = {
            "from": bench.world.wallets.admin.address,
            "to": bench.world.market.jobs,
            "data": jobs.encode_abi("setRelayer", args=[checksum(bench.relayer.address), False]),
            "gas": hex(200_000),
            "maxFeePerGas": hex(10**12),
            "maxPriorityFeePerGas": hex(10**11),
        }
        outcomes: list[object] = []
        async with anyio.create_task_group() as callers:
            async with mining_by_hand(bench.anvil):
                on.start(bench.relayer, relayer_role_of(bench.ops.book, bench.relayer.address))
                for _ in range(2):
                    callers.start_soon(relay_into(on, outcomes), bench.post())
                await until_pooled(bench.anvil)
                await bench.anvil.call("eth_sendTransaction", revoking)  # higher fee, so it is mined first
                await bench.anvil.call("evm_mine")
                await on.until("select bool_and(state = 'queued') and count(*) = 2 from relays")
            assert outcomes == []
            await set_role(chain, bench.world, bench.relayer.address, True)
        assert all(isinstance(outcome, RelayMined) for outcome in outcomes)
        assert await on.relay_violations() == []
