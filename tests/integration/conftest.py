"""Start one chain, one database server and one pin store per run. Give each test a clean view of them.

The services are the devnet's, on free ports. They run in an event loop in a separate thread that lives as long as the
run, so tests may use any event loop.
"""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import asyncpg
import attrs
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from coordinatord.storage.database.migration import migrate
from devnet import accounts
from devnet.accounts import DevWallets
from devnet.anvil import Anvil, running_anvil
from devnet.app import deploy_market
from devnet.market import DevnetMarket
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from devnet.postgres import Postgres, major_version, running_postgres
from devnet.world import World
from tests.support.cid_store import running_cid_store

T = TypeVar("T")


@attrs.frozen
class Services:
    portal: BlockingPortal
    directory: Path

    def run(self, service: AbstractAsyncContextManager[T]) -> Iterator[T]:
        with self.portal.wrap_async_context_manager(service) as running:
            yield running

    def folder(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with start_blocking_portal("asyncio") as portal:
        yield Services(portal, tmp_path_factory.mktemp("services"))


_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the file system in memory that Linux has there
_ROOM: Final = 2 << 30  # databases of a run take several hundred megabytes


@pytest.fixture(scope="session")
def database_folder(services: Services) -> Iterator[Path]:
    """Return a folder in memory if there is room. Each test creates a database of 300 files, and on disk that takes
    longer than most tests."""
    try:
        roomy = shutil.disk_usage(_MEMORY).free > _ROOM
    except OSError:
        roomy = False
    if not roomy:
        yield services.folder("pg")
        return
    for left in _MEMORY.glob("svc-tests-*"):  # left by killed runs
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = _MEMORY / f"svc-tests-{os.getpid()}"
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def shared_anvil(services: Services) -> Iterator[Anvil]:
    yield from services.run(running_anvil(pick_free(), services.folder("anvil"), services.folder("logs")))


@pytest.fixture(scope="session")
def postgres(services: Services, database_folder: Path) -> Iterator[Postgres]:
    yield from services.run(running_postgres(pick_free(), database_folder, services.folder("logs")))


@pytest.fixture(scope="session")
def pin_store(services: Services) -> Iterator[PinStoreService]:
    """Start a pin store for all tests. Each test uses separate keys."""
    yield from services.run(running_cid_store(pick_free(), services.folder("pins"), services.folder("logs")))


@pytest.fixture(scope="session")
def wallets() -> DevWallets:
    return accounts.derive_wallets()


@pytest.fixture(scope="session")
def market(services: Services, shared_anvil: Anvil, wallets: DevWallets) -> DevnetMarket:
    return services.portal.call(deploy_market, shared_anvil, wallets)


@pytest.fixture(scope="session")
def database_template(services: Services, postgres: Postgres) -> str:
    """Create a migrated database, and return its name. Each test copies it, because migrating for each test would take
    most of the run."""
    services.portal.call(postgres.execute, "create database for_tests")
    services.portal.call(_migrated, postgres.url("for_tests"))
    return "for_tests"


async def _migrated(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()


@pytest.fixture
def database_url(services: Services, postgres: Postgres, database_template: str) -> Iterator[str]:
    """Return the URL of a database for this test alone."""
    name = f"test_{secrets.token_hex(6)}"
    # Copy template files instead of writing them to the log twice. PostgreSQL before 15 always copies files.
    as_files = " strategy file_copy" if major_version() >= 15 else ""
    copied = f"create database {name} template {database_template}{as_files}"
    services.portal.call(postgres.execute, copied)
    yield postgres.url(name)
    services.portal.call(postgres.execute, f"drop database {name} with (force)")


@contextmanager
def chain_set_back(services: Services, shared_anvil: Anvil) -> Iterator[Anvil]:
    """Restore the chain to its earlier state after a test or a module.

    Each test starts on a unique block. anvil queues a past state again each time the chain returns to it. When a shared
    block falls off the end of that queue, its state is lost, and a reorg down to it fails. A unique balance makes the
    block unique, regardless of the clock.

    Restoring the chain also restores its clock. After ten minutes of tests, signatures made by the wall clock would be
    stale, so each test first sets the chain's clock to the wall clock.
    """
    call = partial(services.portal.call, shared_anvil.call)
    snapshot = call("evm_snapshot")
    call("evm_setTime", int(time.time()))
    call("anvil_setBalance", "0x" + secrets.token_hex(20), "0x1")
    call("evm_mine")
    yield shared_anvil
    assert call("evm_revert", snapshot)


@pytest.fixture
def anvil(services: Services, shared_anvil: Anvil) -> Iterator[Anvil]:
    with chain_set_back(services, shared_anvil) as anvil:
        yield anvil


@pytest.fixture
def world(
    market: DevnetMarket, anvil: Anvil, pin_store: PinStoreService, postgres: Postgres, wallets: DevWallets
) -> World:
    """The open market on the chain, with wallets and services. For a database, use `database_url`."""
    return World(anvil, pin_store, postgres, wallets, market)
