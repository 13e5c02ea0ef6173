"""Coordinators over one database: killed, stopped under load, or used with one nonce."""

import anyio
import asyncpg
import httpx
import pytest

from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.scene.party import Body
from tests.integration.coordinatord.scene.stage import configured, staged

CLIENTS, JOBS_EACH = 6, 5


@pytest.mark.long
async def test_follower_takes_over_within_10_s_under_load(setup: MarketSetup) -> None:
    # The leader is ready, so its index runs and it holds the role.
    async with setup.running_coordinator() as (leader, _), setup.running_coordinator() as (other, http):
        bodies = await submissions(setup.party(http), CLIENTS * JOBS_EACH)
        load = Load([leader.base_url, other.base_url])
        async with anyio.create_task_group() as clients:
            for n in range(CLIENTS):
                clients.start_soon(load.submit, bodies[n::CLIENTS], n)
            await load.until_posted(3)
            leader.process.kill()
            leader.process.wait()
            before = len(load.posted)
            with anyio.fail_after(10):
                await load.until_posted(before + 1)
            with anyio.fail_after(60):
                await load.until_posted(len(bodies))
        assert before < len(bodies) - CLIENTS  # the kill came during the load
        assert load.unspecified() == []
        assert await setup.violations(load.posted) == []


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
async def test_sigterm_under_load_finishes_every_request(setup: MarketSetup) -> None:
    posts: list[httpx.Response] = []
    reads: list[int] = []
    ready, unready = anyio.Event(), anyio.Event()
    async with setup.running_coordinator() as (coordinator, _):
        limits = httpx.Limits(max_connections=POSTS + 1)
        async with httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=60, limits=limits) as http:
            bodies = await submissions(setup.party(http), POSTS)

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
                mining_by_hand(setup.world.anvil),
                anyio.create_task_group() as clients,
            ):
                for body in bodies:
                    clients.start_soon(post, body)
                await _until_all_broadcast(setup.database_url, POSTS)
                for _ in range(READERS):
                    clients.start_soon(read)
                await ready.wait()
                coordinator.terminate()
                with anyio.fail_after(60):
                    await unready.wait()
                await setup.world.anvil.call("evm_mine")
        assert [answer.status_code for answer in posts] == [201] * POSTS
        assert set(reads) == {200, 503}
        assert await coordinator.exit_status() == 0
    jobs = {bytes.fromhex(body["job_id"][2:]) for body in bodies}
    assert await setup.violations(jobs) == []


async def test_nonce_used_at_two_coordinators_opens_one_session(setup: MarketSetup) -> None:
    config = configured(setup.world, setup.database_url)
    async with staged(setup.world, config, []) as one, staged(setup.world, config, []) as other:
        client = setup.party(one.http)
        bodies = [await client.session_body() for _ in range(8)]
        answers: list[tuple[str, int]] = []

        async def use(http: httpx.AsyncClient, body: Body) -> None:
            answer = await http.post("/auth/session", json=body)
            if answer.status_code != 200:
                assert answer.json()["error"]["param"] == "nonce"
            answers.append((body["nonce"], answer.status_code))

        async with anyio.create_task_group() as users:
            for body in bodies:
                for http in (one.http, other.http, one.http, other.http):
                    users.start_soon(use, http, body)
        assert sorted(answers) == sorted((b["nonce"], status) for b in bodies for status in (200, 400, 400, 400))
        assert await one.fetchval("select count(*) from sessions") == len(bodies)
