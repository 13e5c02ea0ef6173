"""Services of a running devnet. Tests also use a `World`, which has neither coordinator nor provider."""

import attrs

from devnet.accounts import DevWallets
from devnet.anvil import Anvil
from devnet.child import Child
from devnet.coordinator import CoordinatorService
from devnet.market import DevnetMarket
from devnet.pins import PinStoreService
from devnet.postgres import Postgres
from devnet.provider import ProviderService


@attrs.frozen
class World:
    """Services, wallets and market that the coordinator and the provider need."""

    anvil: Anvil
    pins: PinStoreService
    postgres: Postgres
    wallets: DevWallets
    market: DevnetMarket

    @property
    def children(self) -> tuple[Child, ...]:
        return self.anvil.child, *self.pins.children, self.postgres.child


@attrs.frozen
class Devnet:
    """A `World` with a running coordinator and provider."""

    world: World
    coordinator: CoordinatorService
    provider: ProviderService

    @property
    def children(self) -> tuple[Child, ...]:
        return *self.world.children, self.coordinator.child, self.provider.child
