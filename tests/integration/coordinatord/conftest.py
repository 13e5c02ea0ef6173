"""Start a coordinator per test, and check that each test got the responses that its `@shows` marks name."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.shows import assert_shown
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged


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
def party(stage: Stage) -> Callable[[DevWallet], Party]:
    ground = stage.ground

    def make(wallet: DevWallet) -> Party:
        return Party(
            wallet_of(wallet), ground.domains, ground.config.addresses.job_registry, stage.http, wallet.box_key
        )

    return make


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
