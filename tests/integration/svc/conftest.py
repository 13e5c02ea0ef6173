"""A coordinator as a process, so that clients of either event loop can reach it, and a provider who works."""

import json
from collections.abc import AsyncIterator, Iterator

import attrs
import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.accounts import Wallet as DevnetWallet
from devnet.ports import pick_free
from devnet.world import World
from svc.client import Client
from tests.integration.conftest import Services
from tests.integration.coordinatord.api.party import Party, wallet_of
from tests.integration.coordinatord.api.running import Coordinator, running
from tests.integration.coordinatord.api.stage import environment
from tests.integration.svc.working_provider import WorkingProvider


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Nothing of the SDK may lean on one event loop."""
    return str(request.param)


@attrs.frozen
class Shop:
    """Where clients go."""

    base_url: str
    gateway: str
    world: World

    @property
    def options(self) -> dict[str, str]:
        """The environment of a client that buys here with the first client's wallet."""
        return {
            "SVC_BASE_URL": self.base_url,
            "SVC_PIN_GATEWAY": self.gateway,
            "SVC_WALLET_KEY": self.world.cast.with_role("client")[0].private_key,
        }


@pytest.fixture
def coordinator(services: Services, world: World, database_url: str) -> Iterator[Coordinator]:
    yield from services.run(running(environment(world, database_url), pick_free(), pick_free()))


@pytest.fixture
def shop(coordinator: Coordinator, world: World) -> Shop:
    return Shop(coordinator.base_url, world.pins.gateway, world)


@pytest.fixture
async def client(shop: Shop, anyio_backend: str) -> AsyncIterator[Client]:
    async with Client(environment=shop.options) as client:
        yield client


@pytest.fixture
async def provider(shop: Shop, anyio_backend: str) -> AsyncIterator[WorkingProvider]:
    """Signed in, with an ask for the first model in both windows."""
    wallet = shop.world.cast.with_role("provider")[0]
    async with httpx.AsyncClient(base_url=shop.base_url, trust_env=False, timeout=30) as http:
        provider = WorkingProvider(_party(wallet, shop, http), wallet.box_secret, shop.gateway)
        await provider.open_shop(shop.world.market.provider_ids[wallet.address])
        yield provider


def _party(wallet: DevnetWallet, shop: Shop, http: httpx.AsyncClient) -> Party:
    book = AddressBook.parse(json.dumps(shop.world.market.address_book).encode())
    return Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)
