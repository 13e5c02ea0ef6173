"""The whole database server stops under a working coordinator, and restarts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import asyncpg
import httpx
import pytest

from common.address_book import AddressBook
from common.scalars import base64_of
from devnet.accounts import DevWallet
from devnet.child import run_program as running_child
from devnet.ports import pick_free
from devnet.postgres import Postgres, running_postgres
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment, until
from tests.integration.coordinatord.scene.tabs import POST, path_of

pytestmark = pytest.mark.anyio

CLIENTS, JOBS_EACH = 4, 4
ROLES_HELD = (
    "select count(*) from pg_locks where locktype = 'advisory' and granted"
    " and database = (select oid from pg_database where datname = current_database())"
)


@pytest.fixture
async def own_postgres(tmp_path: Path) -> AsyncIterator[Postgres]:
    directory = tmp_path / "pg"
    directory.mkdir()
    async with running_postgres(pick_free(), directory, tmp_path) as server:
        yield server


@asynccontextmanager
async def started_again(server: Postgres) -> AsyncIterator[None]:
    async def answers() -> bool:
        try:
            await server.execute("select 1")
        except (OSError, asyncpg.CannotConnectNowError):
            return False
        return True

    async with running_child(server.child.program) as process:
        await process.wait_until(answers)
        yield


async def roles_held(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(ROLES_HELD))
    finally:
        await connection.close()


@pytest.mark.long
async def test_postgres_restart_under_load_loses_nothing(
    world: World,
    own_postgres: Postgres,
    book: AddressBook,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
) -> None:
    url = own_postgres.url()
    async with (
        running(environment(world, url), pick_free(), pick_free()) as coordinator,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        roles = await roles_held(url)
        bodies = await submissions(party_at(world.wallets.with_role("client")[0], http), CLIENTS * JOBS_EACH)
        load = Load([coordinator.base_url])
        async with anyio.create_task_group() as clients:
            for n in range(CLIENTS):
                clients.start_soon(load.submit, bodies[n::CLIENTS])
            await load.until_posted(2)
            await own_postgres.child.stop()
            refused = await until(lambda: http.get("/v1/models"), 503)
            assert refused.json()["error"]["type"] == "not_ready"
            assert refused.headers["x-svc-retryable"] == "true"
            assert (await until(lambda: http.get("/readyz"), 503)).json()["ready"] is False
            assert (await http.get("/healthz")).status_code == 200
            async with started_again(own_postgres):
                await until(lambda: http.get("/readyz"), 200)
                with anyio.fail_after(60):
                    await load.until_posted(len(bodies))
                assert coordinator.process.poll() is None
                with anyio.fail_after(60):
                    while await roles_held(url) != roles:  # noqa: ASYNC110 - the event is in another process
                        await anyio.sleep(0.05)
                assert load.unspecified() == []
                assert (503, "not_ready") in load.answers
                assert await all_violations(url, world.anvil.rpc_url, book, promised=load.posted) == []
                coordinator.terminate()
                assert await coordinator.exit_status() == 0


@pytest.mark.long
async def test_streams_of_tabs_continue_after_a_restart(
    world: World,
    own_postgres: Postgres,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
) -> None:
    """Frames that waited may be lost, and new ones arrive on the same stream."""
    async with (
        running(environment(world, own_postgres.url()), pick_free(), pick_free()) as coordinator,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=60) as http,
    ):
        client, provider = (party_at(world.wallets.with_role(role)[0], http) for role in ("client", "provider"))
        await client.sign_in()
        await provider.sign_in("provider")
        job = (await client.post(designated=1))["job_id"]
        await provider.run(provider.claim(job))
        async with http.stream("GET", path_of(job), headers=client.authorization) as response:
            assert response.status_code == 200
            pieces = response.aiter_text()
            await anext(pieces)
            await own_postgres.child.stop()
            body = {"messages": [{"job_id": job, "body": base64_of(b"after")}]}
            send = partial(http.post, POST, json=body, headers=provider.authorization)
            await until(send, 503)
            async with started_again(own_postgres):
                await until(send, 200)
                with anyio.fail_after(60):
                    while base64_of(b"after") not in await anext(pieces):
                        pass
