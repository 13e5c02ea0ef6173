"""A coordinator in a separate process, so that clients of either event loop can reach it, and a working provider."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator

import attrs
import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.accounts import DevWallet, DevWallets
from devnet.anvil import Anvil
from devnet.market import DevnetMarket
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from devnet.postgres import Postgres
from devnet.world import World
from svc.client import Client
from tests.integration.conftest import Services, chain_set_back
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment
from tests.integration.svc.working_provider import WorkingProvider


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The SDK must not depend on one event loop."""
    return str(request.param)


@attrs.frozen
class Shop:
    """Addresses for clients."""

    base_url: str
    gateway: str
    world: World

    @property
    def options(self) -> dict[str, str]:
        """Return the environment of a client that uses the first client's wallet."""
        return {
            "SVC_BASE_URL": self.base_url,
            "SVC_PIN_GATEWAY": self.gateway,
            "SVC_WALLET_KEY": self.world.wallets.with_role("client")[0].private_key,
            "SVC_KNOWN_MARKETS": "",
        }


@pytest.fixture(scope="module")
def shop(  # noqa: PLR0917 - fixtures come as arguments
    services: Services,
    market: DevnetMarket,
    shared_anvil: Anvil,
    pin_store: PinStoreService,
    postgres: Postgres,
    wallets: DevWallets,
) -> Iterator[Shop]:
    """One coordinator per module, since starting one takes longer than most tests. It has an escrow.

    The chain is set back behind it, as `anvil` does behind a single test.
    """
    name = f"test_{secrets.token_hex(6)}"
    services.portal.call(postgres.execute, f"create database {name}")
    with chain_set_back(services, shared_anvil):
        world = World(shared_anvil, pin_store, postgres, wallets, market)
        settings = environment(world, postgres.url(name), ESCROW_MODE="static", OPERATOR_KEY="0x" + "17" * 32)
        for coordinator in services.run(running(settings, pick_free(), pick_free())):
            yield Shop(coordinator.base_url, pin_store.gateway, world)
    services.portal.call(postgres.execute, f"drop database {name} with (force)")


@pytest.fixture
async def client(shop: Shop, anyio_backend: str) -> AsyncIterator[Client]:
    async with Client(environment=shop.options) as client:
        yield client


@pytest.fixture
async def provider(shop: Shop, anyio_backend: str) -> AsyncIterator[WorkingProvider]:
    """A signed-in provider that sells the first model in both windows."""
    wallet = shop.world.wallets.with_role("provider")[0]
    async with httpx.AsyncClient(base_url=shop.base_url, trust_env=False, timeout=30) as http:
        provider = WorkingProvider(_party(wallet, shop, http), wallet.box_secret, shop.gateway)
        await provider.open_shop(shop.world.market.provider_ids[wallet.address])
        yield provider


def _party(wallet: DevWallet, shop: Shop, http: httpx.AsyncClient) -> Party:
    book = AddressBook.parse(json.dumps(shop.world.market.address_book).encode())
    return Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)


@pytest.fixture
def provider_id(shop: Shop) -> int:
    """Id of the working provider."""
    return shop.world.market.provider_ids[shop.world.wallets.with_role("provider")[0].address]
