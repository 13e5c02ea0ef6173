"""Services of a running devnet. Tests also use a `World`, which has no daemons."""

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
    """Everything that the daemons need: chain, pin store, database, wallets and deployed market."""

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
