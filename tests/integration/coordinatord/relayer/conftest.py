from collections.abc import AsyncIterator, Iterator

import attrs
import pytest

from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from devnet.accounts import DevWallets
from devnet.anvil import Anvil
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.relayer.ops import Ops, signer
from tests.integration.coordinatord.relayer.running import Scene
from tests.support.faults.rpc_proxy import rpc_proxy
from tests.support.faults.write_ahead import WriteAhead


@pytest.fixture
def write_ahead(services: Services, database_url: str) -> Iterator[WriteAhead]:
    """Check in every relayer test that each sent transaction was stored first."""
    oracle = WriteAhead(database_url)
    yield oracle
    found = services.portal.call(oracle.found)
    services.portal.call(oracle.aclose)
    assert found == []


@pytest.fixture
def anvil(services: Services, anvil: Anvil, write_ahead: WriteAhead) -> Iterator[Anvil]:
    """The node behind a proxy that shows every sent transaction to the oracle, from any process."""
    for proxy in services.run(rpc_proxy(anvil.rpc_url, write_ahead)):
        yield attrs.evolve(anvil, rpc_url=proxy.url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Pool of two connections to an empty database."""
    async with open_database(database_url, max_size=2) as opened:
        yield opened


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    """A connection to the migrated database."""
    async with database.connection() as opened:
        await migrate(opened)
        yield opened


@pytest.fixture
def scene(world: World, database_url: str, wallets: DevWallets) -> Scene:
    """Open market, and the first wallets of its relayer, clients and providers."""
    parties = [signer(wallets.with_role(role)[0]) for role in ("relayer", "client", "provider")]
    return Scene(world, database_url, Ops.of(world.market), *parties)
