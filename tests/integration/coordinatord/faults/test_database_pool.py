"""Other users hold every connection of the pool."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import httpx
import pytest

from common.address_book import AddressBook
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import open_database
from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged

pytestmark = pytest.mark.anyio

PartyAt = Callable[[DevWallet, httpx.AsyncClient], Party]


@asynccontextmanager
async def exhausted(stage: Stage) -> AsyncIterator[None]:
    """Hold all connections of the pool during the block."""
    pool = stage.ground.database.pool
    async with AsyncExitStack() as held:
        for _ in range(pool.get_max_size()):
            await held.enter_async_context(pool.acquire(timeout=60))
        yield


async def test_request_waits_for_a_free_connection(world: World, database_url: str, party_at: PartyAt) -> None:
    async with staged(world, configured(world, database_url), [], connection_wait=20) as stage:
        client = party_at(world.wallets.with_role("client")[0], stage.http)
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


async def test_request_without_connection_is_503_and_posts_nothing(
    world: World, database_url: str, book: AddressBook, party_at: PartyAt
) -> None:
    async with staged(world, configured(world, database_url), [], connection_wait=0.2) as stage:
        client = party_at(world.wallets.with_role("client")[0], stage.http)
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
        assert await all_violations(database_url, world.anvil.rpc_url, book, promised=jobs) == []
