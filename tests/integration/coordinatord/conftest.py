"""Start a coordinator per test, and check that each test got the responses that its `@shows` marks name."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from coordinatord.storage.database.connections import Database, open_database
from coordinatord.storage.database.migration import migrate
from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import assert_shown
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged
from tests.integration.coordinatord.scene.streams import Streams, streams_of


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
    world: World, database_url: str, seen: list[Seen], stage_settings: dict[str, object]
) -> AsyncIterator[Stage]:
    async with staged(world, configured(world, database_url, **stage_settings), seen) as stage:
        yield stage


@pytest.fixture
async def streams(stage: Stage, seen: list[Seen]) -> AsyncIterator[Streams]:
    async with streams_of(stage, seen) as opened:
        yield opened


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database, without a coordinator."""
    async with open_database(database_url, max_size=8) as opened:
        async with opened.connection() as connection:
            await migrate(connection)
        yield opened


@pytest.fixture
def party(stage: Stage) -> Callable[[DevWallet], Party]:
    return lambda wallet: Party.at(wallet, stage.ground.config.addresses, stage.http)


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
