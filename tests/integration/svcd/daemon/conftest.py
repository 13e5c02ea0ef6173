"""The real daemon with a real coordinator and its chain. Tests use asyncio because the coordinator does. The daemon is
a separate process."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest

from common.address_book import AddressBook
from common.domains import Domains
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment
from tests.integration.svcd.daemon.scene import Scene
from tests.support.faults.holding_proxy import holding_proxy


@pytest.fixture
def book(world: World) -> AddressBook:
    return AddressBook.parse(json.dumps(world.market.address_book).encode())


@pytest.fixture
async def scene(
    world: World, database_url: str, book: AddressBook, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    directory = tmp_path_factory.mktemp("provider")
    hosting = {"ESCROW_MODE": "static", "OPERATOR_KEY": world.wallets.operator.private_key}
    async with staged(world, database_url, book, directory, **hosting) as (scene, http):
        escrow = bytes.fromhex((await http.get("/key")).json()["escrow_public_key"])
        yield attrs.evolve(scene, escrow=escrow)


@pytest.fixture
async def sparse_scene(
    world: World, database_url: str, book: AddressBook, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """A coordinator that hosts no escrow and takes no large files."""
    directory = tmp_path_factory.mktemp("provider")
    async with staged(world, database_url, book, directory, MAX_BLOB_BYTES=10_000_000) as (scene, _):
        yield scene


@asynccontextmanager
async def staged(
    world: World, database_url: str, book: AddressBook, directory: Path, **settings: object
) -> AsyncIterator[tuple[Scene, httpx.AsyncClient]]:
    account = world.wallets.demo_provider
    async with (
        running(
            environment(world, database_url, MATCH_LEASE_MS=1000, **settings), pick_free(), pick_free()
        ) as coordinator,
        holding_proxy(coordinator.base_url, world.pins.gateway) as proxy,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        client, provider = (
            Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, account.box_key)
            for wallet in (world.wallets.with_role("client")[0], account)
        )
        yield Scene(world, proxy, client, provider, account.box_key, database_url, book, directory), http
