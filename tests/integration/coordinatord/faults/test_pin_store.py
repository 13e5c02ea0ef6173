"""A real pin store that dies or fills its disk."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest

from devnet.child import run_program as running_child
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.stage import Stage, configured, staged
from tests.support.cid_store import running_cid_store
from tests.support.faults.full_disk import fill, mounted_disk


@asynccontextmanager
async def stage_with_separate_store(setup: MarketSetup, data: Path, logs: Path) -> AsyncIterator[Stage]:
    """A coordinator with a separate pin store."""
    async with running_cid_store(pick_free(), data, logs) as pins:
        own = attrs.evolve(setup.world, pins=pins)
        async with staged(own, configured(own, setup.database_url), []) as stage:
            yield stage


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


async def test_store_restart_costs_only_a_retry(setup: MarketSetup, tmp_path: Path) -> None:
    async with stage_with_separate_store(setup, tmp_path, tmp_path) as stage:
        client = setup.party(stage.http)
        first = await client.post()
        body = await client.paid(client.container(b"second"))
        await stage.world.pins.children[0].kill()
        assert await told(stage, body) == (503, "pinner_unavailable", "store_unavailable", "true")
        assert await stage.fetchval("select count(*) from relays") == 1
        async with started_again(stage.world.pins):
            assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201
            for job in (first["job_id"], body["job_id"]):
                assert await stage.stored(f"containers/{job[2:]}")  # I7: earlier content is still stored
        assert await setup.violations() == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "disk").mkdir()
    with mounted_disk(tmp_path / "disk", mib=2) as disk:
        yield disk


async def test_store_with_a_full_disk_is_503_until_there_is_room(
    setup: MarketSetup, tiny_disk: Path, tmp_path: Path
) -> None:
    data = tiny_disk / "pins"
    data.mkdir()
    async with stage_with_separate_store(setup, data, tmp_path) as stage:
        client = setup.party(stage.http)
        body = await client.paid(client.container(b"x" * 200_000))
        ballast = tiny_disk / "ballast"
        fill(ballast)
        assert await told(stage, body) == (503, "pinner_unavailable", "store_unavailable", "true")
        assert await stage.fetchval("select count(*) from relays") == 0
        ballast.unlink()
        assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201
        assert await setup.violations() == []
