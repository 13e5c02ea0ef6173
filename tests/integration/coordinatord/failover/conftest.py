from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.failover.servers import Pair, replicated
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
async def synchronous(tmp_path: Path) -> AsyncIterator[Pair]:
    async with replicated(tmp_path, synchronous=True) as pair:
        yield pair


@pytest.fixture
async def asynchronous(tmp_path: Path) -> AsyncIterator[Pair]:
    async with replicated(tmp_path, synchronous=False) as pair:
        yield pair
