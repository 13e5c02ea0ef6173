"""A coordinator as a separate process, for third-party programs that connect over sockets.

Modules here are not named `test_*.py`, so only `make peers` runs them.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import httpx
import pytest

from common.domains import Domains
from coordinatord.run.config import Config
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import configured, environment

ROOT = Path(__file__).parents[4]


@attrs.frozen
class Served:
    """A running coordinator. `http` uses its base URL."""

    coordinator: Coordinator
    config: Config
    http: httpx.AsyncClient
    world: World

    def party(self, wallet: DevWallet) -> Party:
        addresses = self.config.addresses
        domains = Domains.of(addresses)
        return Party(wallet_of(wallet), domains, addresses.job_registry, self.http, wallet.box_key)


@pytest.fixture
def served_settings() -> dict[str, object]:
    """Settings of the coordinator. Modules override this."""
    return {}


@pytest.fixture
async def served(
    world: World, database_url: str, served_settings: dict[str, object], tmp_path: Path
) -> AsyncIterator[Served]:
    settings = environment(world, database_url, **served_settings)
    config = configured(world, database_url, **served_settings)
    with (tmp_path / "coordinatord.log").open("wb") as log:
        async with (
            running(settings, pick_free(), pick_free(), errors=log.fileno()) as coordinator,
            httpx.AsyncClient(base_url=coordinator.base_url, timeout=100, trust_env=False) as http,
        ):
            yield Served(coordinator, config, http, world)


@pytest.fixture
def owner(served: Served) -> Party:
    return served.party(served.world.wallets.with_role("client")[0])


@pytest.fixture
async def seller(served: Served) -> Party:
    """A registered, listed and signed-in provider."""
    party = served.party(served.world.wallets.with_role("provider")[0])
    await party.sign_in("provider")
    return party


@pytest.fixture
def held(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Record a check for the table that `make peers` prints."""
    return lambda words: record_property("held", words)
