"""A local market of real daemons, for benchmarks: a chain, a pin store, a database and a coordinator with default
settings. Providers start and stop with the benchmarks, because their settings differ.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import attrs
import httpx

from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deploy_market
from devnet.coordinator import CoordinatorService, running_coordinator
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.provider import running_provider
from devnet.settings import DEFAULT_SLOTS
from devnet.world import Devnet, World
from svc.client import Client
from tests.support.cid_store import running_cid_store

RATES: Final = {"rate_in": 100_000, "rate_out": 200_000}  # the devnet's provider's asks
# A smaller pool for the buyer. httpx checks each connection for each request, which would be most of the cost of a
# result.
_CONNECTIONS: Final = httpx.Limits(max_connections=8)


@attrs.frozen
class Ground:
    """The market without a provider, and where its providers keep their files."""

    world: World
    coordinator: CoordinatorService
    folder: Path

    @asynccontextmanager
    async def provided(self, slots: int = DEFAULT_SLOTS, *, ahead: bool = False) -> AsyncIterator[Devnet]:
        """Start a provider, on a chain with a block for each transaction."""
        world = self.world
        await self.mine_each_transaction()
        async with (
            running_provider(
                account=world.wallets.demo_provider,
                coordinator_url=self.coordinator.base_url,
                rpc_url=world.anvil.rpc_url,
                gateway=world.pins.gateway,
                address_book=world.market.address_book,
                metrics_port=pick_free(),
                directory=self.folder / "provider",
                logs=self.folder,
                slots=slots,
                ahead=ahead,
            ) as provider,
            anyio.create_task_group() as watches,
        ):
            up = Devnet(world, self.coordinator, provider)
            for child in up.children:
                watches.start_soon(child.raise_when_ended)
            yield up
            watches.cancel_scope.cancel()

    async def mine_each_transaction(self) -> None:
        await self.world.anvil.call("evm_setIntervalMining", 0)
        await self.world.anvil.call("evm_setAutomine", True)


@asynccontextmanager
async def ground() -> AsyncIterator[Ground]:
    wallets = accounts.derive_wallets()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("anvil", "pins", "postgres", "provider"):
            (folder / part).mkdir()
        async with (
            running_anvil(pick_free(), folder / "anvil", folder) as anvil,
            running_cid_store(pick_free(), folder / "pins", folder) as pins,
            running_postgres(pick_free(), folder / "postgres", folder) as postgres,
        ):
            market = await deploy_market(anvil, wallets, announcing=(wallets.demo_provider,))
            async with running_coordinator(
                port=pick_free(),
                metrics_port=pick_free(),
                rpc_url=anvil.rpc_url,
                database_url=postgres.url(),
                pins=pins,
                address_book=market.address_book,
                relayer_key=wallets.with_role("relayer")[0].private_key,
                operator_key=wallets.operator.private_key,
                logs=folder,
            ) as coordinator:
                yield Ground(World(anvil, pins, postgres, wallets, market), coordinator, folder)


@asynccontextmanager
async def customer(up: Devnet) -> AsyncIterator[Client]:
    url, gateway = up.coordinator.base_url, up.world.pins.gateway
    key = up.world.wallets.with_role("client")[0].private_key
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=_CONNECTIONS) as http,
        Client(url, http=http, wallet_key=key, gateways=gateway, environment={}) as client,
    ):
        yield client


async def height(up: Devnet) -> int:
    return int(await up.world.anvil.call("eth_blockNumber"), 16)
