"""SIGTERM stops the coordinator while many requests are in flight."""

from collections.abc import Callable

import anyio
import asyncpg
import httpx
import pytest

from common.address_book import AddressBook
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.faults.load import submissions
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment

pytestmark = pytest.mark.anyio

POSTS, READERS = 16, 24


async def _until_all_broadcast(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        with anyio.fail_after(60):
            while await connection.fetchval("select count(*) from relays where state = 'signed'") < count:  # noqa: ASYNC110 - the event is in another process
                await anyio.sleep(0.05)
    finally:
        await connection.close()


@pytest.mark.long
async def test_sigterm_under_load_finishes_every_request(
    world: World,
    database_url: str,
    book: AddressBook,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
) -> None:
    posts: list[httpx.Response] = []
    reads: list[int] = []
    ready, unready = anyio.Event(), anyio.Event()
    async with running(environment(world, database_url), pick_free(), pick_free()) as coordinator:
        limits = httpx.Limits(max_connections=POSTS + 1)
        async with httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=60, limits=limits) as http:
            bodies = await submissions(party_at(world.wallets.with_role("client")[0], http), POSTS)

            async def post(body: Body) -> None:
                posts.append(await http.post("/v1/jobs", json=body))

            async def read() -> None:
                """Read until the port is closed."""
                while True:
                    try:
                        answer = await readers.get("/readyz")
                    except httpx.TransportError:
                        return
                    reads.append(answer.status_code)
                    (ready if answer.status_code == 200 else unready).set()

            async with (
                httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False) as readers,
                mining_by_hand(world.anvil),
                anyio.create_task_group() as clients,
            ):
                for body in bodies:
                    clients.start_soon(post, body)
                await _until_all_broadcast(database_url, POSTS)
                for _ in range(READERS):
                    clients.start_soon(read)
                await ready.wait()
                coordinator.terminate()
                with anyio.fail_after(60):
                    await unready.wait()
                await world.anvil.call("evm_mine")
        assert [answer.status_code for answer in posts] == [201] * POSTS
        assert set(reads) == {200, 503}
        assert await coordinator.exit_status() == 0
    jobs = {bytes.fromhex(body["job_id"][2:]) for body in bodies}
    assert await all_violations(database_url, world.anvil.rpc_url, book, promised=jobs) == []
