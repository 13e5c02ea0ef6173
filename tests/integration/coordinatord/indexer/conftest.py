"""A migrated database per test, and the index as comparable values."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from devnet.world import World
from tests.integration.coordinatord.indexer.scene import Scene, open_scene


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=4) as opened:
        async with opened.connection() as connection:
            await migrate(connection)
        yield opened


@pytest.fixture
async def connection(database: Database) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection like that of the indexer's role holder."""
    opened = await database.connect()
    yield opened
    await opened.close()


@pytest.fixture
async def scene(world: World, connection: Connection) -> AsyncIterator[Scene]:
    async with open_scene(world, connection) as opened:
        yield opened
