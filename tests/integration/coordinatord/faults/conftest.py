from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from devnet.world import World
from tests.integration.coordinatord.faults.deployment import Deployed, Deployment
from tests.integration.coordinatord.faults.deployment import deployed as deployed_in
from tests.integration.coordinatord.faults.place import Place


@pytest.fixture
def place(world: World, database_url: str) -> Place:
    return Place(world, database_url)


@pytest.fixture
def deployed(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """Start coordinators under load, with the page's variables and settings."""
    monkeypatch.setenv("SERVICE_ROOT", str(tmp_path / "root"))

    def deploying(
        variables: dict[str, str] | None = None, processes: int = 2, posts: int = 6, **changed: object
    ) -> AbstractAsyncContextManager[Deployment]:
        return deployed_in(
            tmp_path, place, variables=variables or {}, processes=processes, posts=posts, changed=changed
        )

    return deploying
