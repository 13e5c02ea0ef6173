"""The parts of a local world that is up: the ground, which tests stand on too, and the daemons on it."""

import attrs

from devnet.accounts import Cast
from devnet.anvil import Anvil
from devnet.child import Child
from devnet.coordinator import Coordinator
from devnet.market import Market
from devnet.pins import PinStore
from devnet.postgres import Postgres
from devnet.provider import Provider


@attrs.frozen
class World:
    anvil: Anvil
    pins: PinStore
    postgres: Postgres
    cast: Cast
    market: Market

    @property
    def children(self) -> tuple[Child, ...]:
        return self.anvil.child, self.pins.child, self.postgres.child


@attrs.frozen
class Devnet:
    """The ground with the daemons."""

    world: World
    coordinator: Coordinator
    provider: Provider

    @property
    def children(self) -> tuple[Child, ...]:
        return *self.world.children, self.coordinator.child, self.provider.child
