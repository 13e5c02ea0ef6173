"""Start a coordinator per test, and check that each test got the responses that its `@shows` marks name.

The coordinator of `stage` finds an index of the market's deployment in its database. Other fixtures that start
coordinators get the same database if they request `indexed_deployment`.
"""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from coordinatord.base.wake import Wake
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.run.limits import Limits
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from devnet.accounts import DevWallet
from devnet.anvil import Anvil
from devnet.market import DevnetMarket
from devnet.postgres import Postgres
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.relayer.ops import Ops
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import assert_shown
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged


@pytest.fixture
def indexed_deployment() -> None:
    """Tests with this fixture get a database with an index of the market's deployment."""


@pytest.fixture
def database_template(request: pytest.FixtureRequest, database_template: str) -> str:
    if "indexed_deployment" not in request.fixturenames:
        return database_template
    return str(request.getfixturevalue("indexed_template"))


@pytest.fixture(scope="session")
def indexed_template(services: Services, postgres: Postgres, shared_anvil: Anvil, market: DevnetMarket) -> str:
    """Create a database with an index of the market's deployment, and return its name."""
    services.portal.call(postgres.execute, "create database for_stages")
    services.portal.call(_index_deployment, postgres.url("for_stages"), shared_anvil.rpc_url, market)
    return "for_stages"


async def _index_deployment(database_url: str, rpc_url: str, market: DevnetMarket) -> None:
    book = Ops.of(market).book
    settings = IndexerSettings(
        chain_id=book.chain_id,
        deploy_block=book.deploy_block,
        max_range_blocks=5000,
        block_time_ms=400,
        confirmations=1,  # a test that runs already has put one block onto the deployment's blocks
        journal_blocks=Limits().journal_blocks,
    )
    async with open_rpc(rpc_url) as rpc, open_database(database_url, max_size=1) as database:
        async with database.connection() as connection:
            await migrate(connection)
        connection = await database.connect()
        await IndexFollower(NodeSource(rpc, LogDecoder(book)), settings, Wake()).catch_up(connection)
        await connection.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=8) as opened:
        yield opened


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.connection() as opened:
        yield opened


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Iterator[list[Seen]]:
    """Collect every response of this test. At the end, check that they include all marked ones."""
    answers: list[Seen] = []
    yield answers
    assert_shown(request.node, answers)


@pytest.fixture
def stage_settings() -> dict[str, object]:
    """Settings of the coordinator. Modules override this."""
    return {}


@pytest.fixture
async def stage(
    world: World, indexed_deployment: None, database_url: str, seen: list[Seen], stage_settings: dict[str, object]
) -> AsyncIterator[Stage]:
    async with staged(world, configured(world, database_url, **stage_settings), seen) as stage:
        yield stage


@pytest.fixture
def party(stage: Stage) -> Callable[[DevWallet], Party]:
    return stage.party_of


@pytest.fixture
def client(party: Callable[[DevWallet], Party], world: World) -> Party:
    return party(world.wallets.with_role("client")[0])


@pytest.fixture
async def batching(client: Party, stage: Stage) -> Batching:
    """The client as a signed-in owner of batches."""
    await client.sign_in()
    return await Batching.of(stage, client)


@pytest.fixture
def stranger(party: Callable[[DevWallet], Party], world: World) -> Party:
    return party(world.wallets.with_role("client")[1])


@pytest.fixture
async def provider(party: Callable[[DevWallet], Party], world: World) -> Party:
    """A registered, listed, signed-in provider that may serve every model."""
    provider = party(world.wallets.with_role("provider")[0])
    await provider.sign_in("provider")
    return provider


@pytest.fixture
async def rival(party: Callable[[DevWallet], Party], world: World) -> Party:
    """Another such provider."""
    rival = party(world.wallets.with_role("provider")[1])
    await rival.sign_in("provider")
    return rival
