"""The database's disk is full, and later has room again."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx
import pytest

from common.address_book import AddressBook
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.postgres import Postgres
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment

pytestmark = pytest.mark.anyio

CLIENTS, JOBS_EACH = 24, 2


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """Mount a file system of 24 MiB if this machine allows it. It is outside pytest's folders because the database
    server's account cannot enter those."""
    with TemporaryDirectory() as directory:
        mount = ("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", directory)
        if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
            pytest.skip("a file system of its own takes the right to mount one")
        disk = Path(directory)
        disk.chmod(0o711)
        yield disk
        subprocess.run(("umount", directory), check=True)


@pytest.fixture
def url_on_tiny_disk(services: Services, postgres: Postgres, tiny_disk: Path) -> Iterator[str]:
    place = tiny_disk / "tablespace"
    place.mkdir()
    if postgres.account is not None:
        shutil.chown(place, postgres.account)
    run = services.portal.call
    run(postgres.execute, f"create tablespace tiny location '{place}'")
    run(postgres.execute, "create database on_tiny_disk tablespace tiny")
    yield postgres.url("on_tiny_disk")
    run(postgres.execute, "drop database on_tiny_disk with (force)")
    run(postgres.execute, "drop tablespace tiny")


def fill(ballast: Path) -> None:
    """Fill all free space."""
    with suppress(OSError), ballast.open("wb", buffering=0) as filling:
        while filling.write(bytes(4096)) == 4096:
            pass


async def refusal_of_a_write(http: httpx.AsyncClient) -> tuple[int, str]:
    """Store nonces until one is refused. Rows still fit into free space of existing pages."""
    while True:
        answer = await http.get("/auth/nonce", params={"address": "0x" + os.urandom(20).hex()})
        if answer.status_code != httpx.codes.OK:
            return answer.status_code, answer.json()["error"]["type"]


@pytest.mark.long
async def test_full_disk_is_503_and_loses_nothing(
    world: World,
    url_on_tiny_disk: str,
    tiny_disk: Path,
    book: AddressBook,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
) -> None:
    async with (
        running(environment(world, url_on_tiny_disk), pick_free(), pick_free()) as coordinator,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        bodies = await submissions(party_at(world.wallets.with_role("client")[0], http), CLIENTS * JOBS_EACH)
        load = Load([coordinator.base_url])
        ballast = tiny_disk / "ballast"
        async with anyio.create_task_group() as clients:
            for n in range(CLIENTS):
                clients.start_soon(load.submit, bodies[n::CLIENTS])
            await load.until_posted(2)
            fill(ballast)
            with anyio.fail_after(60):
                assert await refusal_of_a_write(http) == (503, "not_ready")
            assert coordinator.process.poll() is None
            assert (await http.get("/healthz")).status_code == 200
            ballast.unlink()
            with anyio.fail_after(60):
                await load.until_posted(len(bodies))
        assert load.unspecified() == []
        assert await all_violations(url_on_tiny_disk, world.anvil.rpc_url, book, promised=load.posted) == []
