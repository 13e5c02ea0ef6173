"""The database has no free connection, no room on its disk, or restarts."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import asyncpg
import httpx
import pytest

from common.scalars import base64_of
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import open_database
from devnet.ports import pick_free
from devnet.postgres import Postgres, running_postgres
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.failover.servers import started_again
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.stage import Stage, configured, staged, until
from tests.integration.coordinatord.scene.tabs import POST, path_of
from tests.support.faults.full_disk import fill, mounted_disk


@asynccontextmanager
async def exhausted(stage: Stage) -> AsyncIterator[None]:
    """Hold all connections of the pool during the block."""
    pool = stage.ground.database.pool
    async with AsyncExitStack() as held:
        for _ in range(pool.get_max_size()):
            await held.enter_async_context(pool.acquire(timeout=60))
        yield


async def test_request_waits_for_a_free_connection(setup: MarketSetup) -> None:
    async with staged(setup.world, configured(setup.world, setup.database_url), [], connection_wait=20) as stage:
        client = setup.party(stage.http)
        body = await client.paid()
        answers: list[int] = []

        async def post() -> None:
            answers.append((await stage.http.post("/v1/jobs", json=body)).status_code)

        async with anyio.create_task_group() as tasks, exhausted(stage):
            tasks.start_soon(post)
            await anyio.wait_all_tasks_blocked()
            assert answers == []
        assert answers == [201]


async def test_lists_leave_half_of_the_pool_to_others(database_url: str) -> None:
    async with (
        open_database(database_url, max_size=4, acquire_timeout_s=0.2) as database,
        database.connection_for_lists(),
        database.connection_for_lists(),
    ):
        with pytest.raises(Retryable):
            await database.connection_for_lists().__aenter__()
        async with database.connection() as first, database.connection() as second:
            assert await first.fetchval("select 1") == await second.fetchval("select 1")


async def test_request_without_connection_is_503_and_posts_nothing(setup: MarketSetup) -> None:
    async with staged(setup.world, configured(setup.world, setup.database_url), [], connection_wait=0.2) as stage:
        client = setup.party(stage.http)
        await client.sign_in()
        bodies = [await client.paid(client.container(b"%d" % n)) for n in range(12)]
        answers: list[httpx.Response] = []

        async def post(body: dict[str, object]) -> None:
            answers.append(await stage.http.post("/v1/jobs", json=body))

        async def post_all() -> None:
            answers.clear()
            async with anyio.create_task_group() as posts:
                for body in bodies:
                    posts.start_soon(post, body)

        async with exhausted(stage):
            await post_all()
            told = {(a.status_code, a.json()["error"]["type"], a.headers["x-svc-retryable"]) for a in answers}
            assert told == {(503, "not_ready", "true")}
            assert (await stage.http.get("/healthz")).status_code == 200
        assert await stage.fetchval("select count(*) from relays") == 0
        answers.clear()
        for body in bodies:  # one by one, because requests wait only 0.2 s for a connection
            await post(body)
        assert {answer.status_code for answer in answers} == {201}
        jobs = {bytes.fromhex(body["job_id"][2:]) for body in bodies}
        assert await setup.violations(jobs) == []


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """The database server's account cannot enter pytest's folders."""
    with TemporaryDirectory() as directory, mounted_disk(Path(directory), mib=24) as disk:
        disk.chmod(0o711)
        yield disk


@pytest.fixture
def url_on_tiny_disk(services: Services, postgres: Postgres, tiny_disk: Path) -> Iterator[str]:
    """Create a database in a tablespace on the tiny disk. Yield its URL."""
    folder = tiny_disk / "tablespace"
    folder.mkdir()
    if postgres.account is not None:
        shutil.chown(folder, postgres.account)
    run = services.portal.call
    run(postgres.execute, f"create tablespace tiny location '{folder}'")
    run(postgres.execute, "create database on_tiny_disk tablespace tiny")
    yield postgres.url("on_tiny_disk")
    run(postgres.execute, "drop database on_tiny_disk with (force)")
    run(postgres.execute, "drop tablespace tiny")


async def refusal_of_a_write(http: httpx.AsyncClient) -> tuple[int, str]:
    """Store nonces until one is refused. Rows still fit into free space of existing pages."""
    while True:
        answer = await http.get("/auth/nonce", params={"address": "0x" + os.urandom(20).hex()})
        if answer.status_code != httpx.codes.OK:
            return answer.status_code, answer.json()["error"]["type"]


@pytest.mark.long
async def test_full_disk_is_503_and_loses_nothing(world: World, url_on_tiny_disk: str, tiny_disk: Path) -> None:
    setup = MarketSetup(world, url_on_tiny_disk)
    async with setup.running_coordinator() as (coordinator, http):
        bodies = await submissions(setup.party(http), 24 * 2)
        load = Load([coordinator.base_url])
        ballast = tiny_disk / "ballast"
        async with anyio.create_task_group() as clients:
            for n in range(24):
                clients.start_soon(load.submit, bodies[n::24])
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
        assert await setup.violations(load.posted) == []


CLIENTS, JOBS_EACH = 4, 4
ROLES_HELD = (
    "select count(*) from pg_locks where locktype = 'advisory' and granted"
    " and database = (select oid from pg_database where datname = current_database())"
)


@pytest.fixture
async def separate_postgres(tmp_path: Path) -> AsyncIterator[Postgres]:
    """Database server of this test alone, so that the test may stop it."""
    directory = tmp_path / "pg"
    directory.mkdir()
    async with running_postgres(pick_free(), directory, tmp_path) as server:
        yield server


async def roles_held(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(ROLES_HELD))
    finally:
        await connection.close()


@pytest.mark.long
async def test_postgres_restart_under_load_loses_nothing(world: World, separate_postgres: Postgres) -> None:
    setup = MarketSetup(world, url := separate_postgres.url())
    async with setup.running_coordinator() as (coordinator, http):
        roles = await roles_held(url)
        bodies = await submissions(setup.party(http), CLIENTS * JOBS_EACH)
        load = Load([coordinator.base_url])
        async with anyio.create_task_group() as clients:
            for n in range(CLIENTS):
                clients.start_soon(load.submit, bodies[n::CLIENTS])
            await load.until_posted(2)
            await separate_postgres.child.stop()
            refused = await until(lambda: http.get("/v1/models"), 503)
            assert refused.json()["error"]["type"] == "not_ready"
            assert refused.headers["x-svc-retryable"] == "true"
            assert (await until(lambda: http.get("/readyz"), 503)).json()["ready"] is False
            assert (await http.get("/healthz")).status_code == 200
            async with started_again(separate_postgres):
                await until(lambda: http.get("/readyz"), 200)
                with anyio.fail_after(60):
                    await load.until_posted(len(bodies))
                assert coordinator.process.poll() is None
                with anyio.fail_after(60):
                    while await roles_held(url) != roles:  # noqa: ASYNC110 - the event is in another process
                        await anyio.sleep(0.05)
                assert load.unspecified() == []
                assert (503, "not_ready") in load.answers
                assert await setup.violations(load.posted) == []
                coordinator.terminate()
                assert await coordinator.exit_status() == 0


@pytest.mark.long
async def test_streams_of_tabs_continue_after_a_restart(world: World, separate_postgres: Postgres) -> None:
    """Frames that waited may be lost, and new ones arrive on the same stream."""
    setup = MarketSetup(world, separate_postgres.url())
    async with setup.running_coordinator(timeout_s=60) as (_, http):
        client, provider = setup.party(http), setup.party(http, "provider")
        await client.sign_in()
        await provider.sign_in("provider")
        job = (await client.post(designated=1))["job_id"]
        await provider.run(provider.claim(job))
        async with http.stream("GET", path_of(job), headers=client.authorization) as response:
            assert response.status_code == 200
            pieces = response.aiter_text()
            await anext(pieces)
            await separate_postgres.child.stop()
            body = {"messages": [{"job_id": job, "body": base64_of(b"after")}]}
            send = partial(http.post, POST, json=body, headers=provider.authorization)
            await until(send, 503)
            async with started_again(separate_postgres):
                await until(send, 200)
                with anyio.fail_after(60):
                    while base64_of(b"after") not in await anext(pieces):
                        pass
