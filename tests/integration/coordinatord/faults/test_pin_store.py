"""A real pin store that dies, loses objects, fills its disk, or lies about its contents."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import httpx
import pytest

from common.address_book import AddressBook
from coordinatord.base.errors import Retryable
from devnet.child import run_program as running_child
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.relayer.ops import CID
from tests.integration.coordinatord.scene.faults import Rule
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.stage import Stage, configured, staged
from tests.support.cid_store import running_cid_store

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def own_stage(world: World, database_url: str, data: Path, logs: Path) -> AsyncIterator[Stage]:
    """A coordinator with a separate pin store."""
    async with running_cid_store(pick_free(), data, logs) as pins:
        own = attrs.evolve(world, pins=pins)
        async with staged(own, configured(own, database_url), []) as stage:
            yield stage


def client_of(stage: Stage, book: AddressBook) -> Party:
    wallet = stage.world.wallets.with_role("client")[0]
    return Party(wallet_of(wallet), stage.ground.domains, book.job_registry, stage.http, wallet.box_key)


async def told(stage: Stage, body: dict[str, object]) -> tuple[int, str, str, str]:
    answer = await stage.http.post("/v1/jobs", json=body)
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["code"], answer.headers["x-svc-retryable"]


@asynccontextmanager
async def started_again(pins: PinStoreService) -> AsyncIterator[None]:
    async def answers() -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                await http.get(f"{pins.gateway}/ipfs/")
            except httpx.TransportError:
                return False
        return True

    async with running_child(pins.children[0].program) as process:
        await process.wait_until(answers)
        yield


async def test_store_restart_costs_only_a_retry(
    world: World, database_url: str, book: AddressBook, tmp_path: Path
) -> None:
    async with own_stage(world, database_url, tmp_path, tmp_path) as stage:
        client = client_of(stage, book)
        first = await client.post()
        body = await client.paid(client.container(b"second"))
        await stage.world.pins.children[0].kill()
        assert await told(stage, body) == (503, "pinner_unavailable", "store_unavailable", "true")
        assert await stage.fetchval("select count(*) from relays") == 1
        async with started_again(stage.world.pins):
            assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201
            for job in (first["job_id"], body["job_id"]):
                assert await stage.stored(f"containers/{job[2:]}")  # I7: earlier content is still stored
        assert await all_violations(database_url, world.anvil.rpc_url, book) == []


def times_out(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("no answer", request=request)


def another_cid(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"x-amz-meta-cid": CID})


@pytest.mark.parametrize(
    ("rule", "code"), [(times_out, "store_unavailable"), (another_cid, "store_rejected")], ids=["time-out", "wrong CID"]
)
async def test_upload_that_is_not_confirmed_posts_nothing(
    world: World, database_url: str, book: AddressBook, rule: Rule, code: str
) -> None:
    async with staged(world, configured(world, database_url), []) as stage:
        body = await client_of(stage, book).paid()
        with stage.store.answering(rule):
            assert (await told(stage, body))[:3] == (503, "pinner_unavailable", code)
        assert await stage.fetchval("select count(*) from relays") == 0
        assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


async def test_lost_object_is_told_apart_from_a_store_that_is_gone(
    world: World, database_url: str, book: AddressBook
) -> None:
    async with staged(world, configured(world, database_url), []) as stage:
        job = (await client_of(stage, book).post())["job_id"]
        pins, key = stage.ground.pins, f"containers/{job}"
        await pins.delete(key)
        with pytest.raises(Retryable) as lost:
            await pins.get(key)
        assert (lost.value.kind, lost.value.code) == ("pinner_unavailable", "object_missing")
        with stage.store.answering(times_out), pytest.raises(Retryable) as gone:
            await pins.get(key)
        assert gone.value.code == "store_unavailable"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB if this machine allows it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk))
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a file system of its own takes the right to mount one")
    yield disk
    subprocess.run(("umount", str(disk)), check=True)


def fill(ballast: Path) -> None:
    """Fill all free space."""
    with suppress(OSError), ballast.open("wb", buffering=0) as filling:
        while True:
            filling.write(bytes(4096))


async def test_store_with_a_full_disk_is_503_until_there_is_room(
    world: World, database_url: str, book: AddressBook, tiny_disk: Path, tmp_path: Path
) -> None:
    data = tiny_disk / "pins"
    data.mkdir()
    async with own_stage(world, database_url, data, tmp_path) as stage:
        client = client_of(stage, book)
        body = await client.paid(client.container(b"x" * 200_000))
        ballast = tiny_disk / "ballast"
        fill(ballast)
        assert await told(stage, body) == (503, "pinner_unavailable", "store_unavailable", "true")
        assert await stage.fetchval("select count(*) from relays") == 0
        ballast.unlink()
        assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201
        assert await all_violations(database_url, world.anvil.rpc_url, book) == []
