"""One local world for all benchmarks that need it: a chain, a pin store, a database, the market on them and a
coordinator with default settings.

The first user opens it, later ones reuse it, and it closes after the run (`WORLD.kept()`). A benchmark that runs alone
opens it for itself. Providers start and stop with the benchmarks, because their settings differ. Each user sets the
block interval, and may not rely on the previous one.
"""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar

import anyio
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deployed_market
from devnet.coordinator import CoordinatorService, running_coordinator
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.provider import running_provider
from devnet.settings import SLOTS
from devnet.world import Devnet, World
from tests.support.cid_store import running_cid_store

T = TypeVar("T")
Opened = TypeVar("Opened")


@attrs.define
class Shared(Generic[Opened]):
    """A resource opened on first use, in a separate loop, and closed after the last use."""

    _open: Callable[[], AbstractAsyncContextManager[Opened]]
    _keepers: int = 0
    _closing: ExitStack = attrs.field(factory=ExitStack)
    _found: tuple[BlockingPortal, Opened] | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep resources open until the end of the block."""
        self._keepers += 1
        try:
            yield
        finally:
            self._keepers -= 1
            if not self._keepers:
                self._found = None
                self._closing.close()

    def run(self, work: Callable[[Opened], Awaitable[T]]) -> T:
        """What comes of the work, which runs in that loop."""
        with self.kept():
            if self._found is None:
                portal = self._closing.enter_context(start_blocking_portal("asyncio"))
                opened = self._closing.enter_context(portal.wrap_async_context_manager(self._open()))
                self._found = portal, opened
            portal, opened = self._found
            return portal.call(work, opened)


@attrs.frozen
class Ground:
    """The world without a provider, and where its providers keep their files."""

    world: World
    coordinator: CoordinatorService
    folder: Path

    def room(self, name: str) -> Path:
        room = self.folder / name
        room.mkdir(exist_ok=True)
        return room

    async def by_transaction(self) -> None:
        """A block for each transaction from now on; `world.anvil.mine_every` goes back to the clock."""
        await self.world.anvil.call("evm_setIntervalMining", 0)
        await self.world.anvil.call("evm_setAutomine", True)

    @asynccontextmanager
    async def provided(
        self, slots: int = SLOTS, *, ahead: bool = False, block_time: int | None = 1
    ) -> AsyncIterator[Devnet]:
        """Start a complete devnet with this many provider slots. It starts on a chain with instant blocks. Later blocks
        come at this interval, or per transaction."""
        world = self.world
        await self.by_transaction()
        async with (
            running_provider(
                account=world.cast.demo_provider,
                coordinator_url=self.coordinator.base_url,
                rpc_url=world.anvil.rpc_url,
                gateway=world.pins.gateway,
                address_book=world.market.address_book,
                metrics_port=pick_free(),
                directory=self.room("provider"),
                logs=self.folder,
                slots=slots,
                ahead=ahead,
            ) as provider,
            anyio.create_task_group() as watches,
        ):
            up = Devnet(world, self.coordinator, provider)
            for child in up.children:
                watches.start_soon(child.fail_when_it_ends)
            if block_time is not None:
                await world.anvil.mine_every(block_time)
            yield up
            watches.cancel_scope.cancel()


@asynccontextmanager
async def _ground() -> AsyncIterator[Ground]:
    cast = accounts.derive()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("anvil", "pins", "postgres"):
            (folder / part).mkdir()
        async with (
            running_anvil(pick_free(), folder / "anvil", folder) as anvil,
            running_cid_store(pick_free(), folder / "pins", folder) as pins,
            running_postgres(pick_free(), folder / "postgres", folder) as postgres,
        ):
            market = await deployed_market(anvil, cast, bundling=(cast.demo_provider,))
            async with running_coordinator(
                port=pick_free(),
                metrics_port=pick_free(),
                rpc_url=anvil.rpc_url,
                database_url=postgres.url(),
                pins=pins,
                address_book=market.address_book,
                relayer_key=cast.with_role("relayer")[0].private_key,
                operator_key=cast.operator.private_key,
                logs=folder,
            ) as coordinator:
                yield Ground(World(anvil, pins, postgres, cast, market), coordinator, folder)


WORLD: Final = Shared(_ground)
