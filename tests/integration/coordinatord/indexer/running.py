"""The indexer as the daemon runs it: under its role, with notices."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs

from coordinatord.base.wake import Wake
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, run_indexer
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from devnet.world import World
from tests.integration.coordinatord.indexer.scene import settings_of


@attrs.define
class Running:
    database: Database
    wake: Wake
    notices: Notices
    moved: anyio.Event = attrs.field(factory=anyio.Event)

    def hear(self, _block: str) -> None:
        self.moved.set()

    async def until_at(self, block: int) -> None:
        """Wait until the index has announced `block` and is ready to be read."""
        with anyio.fail_after(60):
            while True:
                async with self.database.connection() as connection:
                    position = await read_position(connection)
                if position is not None and position.block_number == block and not position.rebuilding:
                    return
                with anyio.move_on_after(0.5):  # a notice may come before this process listens
                    await self.moved.wait()
                self.moved = anyio.Event()


@asynccontextmanager
async def indexing(
    database: Database, source: NodeSource, world: World, *, block_time_ms: int = 10
) -> AsyncIterator[Running]:
    notices, wake = Notices(), Wake()
    running = Running(database, wake, notices)
    settings: IndexerSettings = attrs.evolve(settings_of(world), block_time_ms=block_time_ms)
    async with anyio.create_task_group() as tasks, notices.subscribe(INDEX_MOVED, running.hear):
        tasks.start_soon(notices.listen, database)
        tasks.start_soon(run_indexer, database, source, settings, notices, wake)
        yield running
        tasks.cancel_scope.cancel()
