"""Services of a running devnet. Tests also use `World` without the daemons."""

import attrs

from devnet.accounts import Cast
from devnet.anvil import Anvil
from devnet.child import Child
from devnet.coordinator import CoordinatorService
from devnet.market import DevnetMarket
from devnet.pins import PinStoreService
from devnet.postgres import Postgres
from devnet.provider import ProviderService


@attrs.frozen
class World:
    """Chain, pin store, database, wallets and deployed market."""

    anvil: Anvil
    pins: PinStoreService
    postgres: Postgres
    cast: Cast
    market: DevnetMarket

    @property
    def children(self) -> tuple[Child, ...]:
        return self.anvil.child, *self.pins.children, self.postgres.child


@attrs.frozen
class Devnet:
    """A `World` with the coordinator and the provider."""

    world: World
    coordinator: CoordinatorService
    provider: ProviderService

    @property
    def children(self) -> tuple[Child, ...]:
        return *self.world.children, self.coordinator.child, self.provider.child
