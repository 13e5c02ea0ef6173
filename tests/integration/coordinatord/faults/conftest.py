from collections.abc import Callable

import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.accounts import DevWallet as DevnetWallet
from devnet.world import World
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.party import Party, wallet_of


@pytest.fixture
def book(world: World) -> AddressBook:
    return address_book(world)


@pytest.fixture
def party_at(book: AddressBook) -> Callable[[DevnetWallet, httpx.AsyncClient], Party]:
    """Someone who talks to the coordinator that this client is connected to."""

    def make(wallet: DevnetWallet, http: httpx.AsyncClient) -> Party:
        return Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)

    return make
