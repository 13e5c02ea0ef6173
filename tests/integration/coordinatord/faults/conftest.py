from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from devnet.world import World
from tests.integration.coordinatord.faults.deployment import Deployment, StartDeployment, run_deployment
from tests.integration.coordinatord.faults.market_setup import MarketSetup


@pytest.fixture
def setup(world: World, database_url: str) -> MarketSetup:
    """Deployed market with an empty database."""
    return MarketSetup(world, database_url)


@pytest.fixture
def start_deployment(setup: MarketSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartDeployment:
    """Start coordinators under load, with the page's variables and settings."""
    monkeypatch.setenv("SERVICE_ROOT", str(tmp_path / "root"))

    def start(
        variables: dict[str, str] | None = None, processes: int = 2, posts: int = 6, **changed: object
    ) -> AbstractAsyncContextManager[Deployment]:
        return run_deployment(
            tmp_path, setup, variables=variables or {}, processes=processes, posts=posts, changed=changed
        )

    return start
