"""The parts of a local world that is up: the ground, which tests stand on too, and the daemons on it."""

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
    """The ground with the daemons."""

    world: World
    coordinator: CoordinatorService
    provider: ProviderService

    @property
    def children(self) -> tuple[Child, ...]:
        return *self.world.children, self.coordinator.child, self.provider.child
