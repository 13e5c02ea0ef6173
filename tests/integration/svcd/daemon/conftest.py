"""The real daemon between a real coordinator and its chain. These tests run on asyncio, as what they hold the daemon
against does; the daemon is a process of its own."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.ports import pick_free
from devnet.world import World
from tests.faults.holding_proxy import holding_proxy
from tests.integration.coordinatord.api.party import Party, wallet_of
from tests.integration.coordinatord.api.running import running
from tests.integration.coordinatord.api.stage import environment
from tests.integration.svcd.daemon.scene import Scene


@pytest.fixture
def book(world: World) -> AddressBook:
    return AddressBook.parse(json.dumps(world.market.address_book).encode())


@pytest.fixture
async def scene(
    world: World, database_url: str, book: AddressBook, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    settings = environment(
        world, database_url, ESCROW_MODE="static", OPERATOR_KEY=world.cast.operator.private_key, MATCH_LEASE_MS=1000
    )
    account = world.cast.demo_provider
    async with (
        running(settings, pick_free(), pick_free()) as coordinator,
        holding_proxy(coordinator.base_url, world.pins.gateway) as proxy,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        client = Party(
            wallet_of(world.cast.with_role("client")[0]), Domains.of(book), book.job_registry, http, account.box_key
        )
        escrow = bytes.fromhex((await http.get("/key")).json()["escrow_public_key"])
        yield Scene(world, proxy, client, escrow, database_url, book, tmp_path_factory.mktemp("provider"))
