from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.faults.deployment import Deployed, Deployment
from tests.integration.coordinatord.faults.deployment import deployed as deployed_in
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.party import Party, wallet_of


@pytest.fixture
def book(world: World) -> AddressBook:
    return address_book(world)


@pytest.fixture
def party_at(book: AddressBook) -> Callable[[DevWallet, httpx.AsyncClient], Party]:
    """Return a party that uses this client's coordinator."""

    def make(wallet: DevWallet, http: httpx.AsyncClient) -> Party:
        return Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)

    return make


@pytest.fixture
def deployed(
    world: World,
    database_url: str,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Deployed:
    """Start coordinators under load, with the page's variables and settings."""
    monkeypatch.setenv("SERVICE_ROOT", str(tmp_path / "root"))

    def deploying(
        variables: dict[str, str] | None = None, processes: int = 2, posts: int = 6, **changed: object
    ) -> AbstractAsyncContextManager[Deployment]:
        return deployed_in(
            tmp_path,
            world,
            database_url,
            party_at,
            variables=variables or {},
            processes=processes,
            posts=posts,
            changed=changed,
        )

    return deploying
