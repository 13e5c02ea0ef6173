"""Reads by a real standby: taken while it is of the index's block, and left to the primary while it replays, hangs or
is gone, with no answer that is older than the primary's."""

import secrets
import signal
from collections.abc import Iterator

import anyio
import asyncpg
import pytest

from coordinatord.base.metrics import REGISTRY
from devnet.ports import pick_free
from devnet.postgres import Postgres, running_standby
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged

READS = ("/evm/jobs", "/evm/jobs/summary?owner={owner}", "/evm/jobs/{job}", "/evm/providers", "/evm/providers/1")
READS += ("/evm/asks", "/evm/asks/floors", "/evm/allowlist", "/v1/models", "/evm/models")


@pytest.fixture
def standby(postgres: Postgres, services: Services) -> Iterator[Postgres]:
    """Start a standby in the loop that started its primary."""
    name = f"standby-{secrets.token_hex(4)}"
    folder = services.folder(name)
    yield from services.run(running_standby(postgres, pick_free(), folder, services.folder("logs")))


def reads(outcome: str) -> float:
    return REGISTRY.get_sample_value("coordinatord_replica_reads_total", {"outcome": outcome}) or 0.0


async def execute(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def until_at(url: str, block: int) -> None:
    with anyio.fail_after(60):
        while True:
            try:
                if await execute(url, "select block_number from index_position") == block:
                    return
            except asyncpg.PostgresError:  # it has not replayed the table yet
                pass
            await anyio.sleep(0.05)


async def answers(stage: Stage, job: str, owner: str) -> dict[str, object]:
    """Send every read, and return the responses. None may fail."""
    found: dict[str, object] = {}
    for path in READS:
        target = path.format(job=job, owner=owner)
        # A query without effect, to avoid cached responses.
        answer = await stage.http.get(f"{target}{'&' if '?' in target else '?'}_={anyio.current_time()}")
        assert answer.status_code == 200, (target, answer.text)
        found[path] = answer.json()
    return found


@pytest.mark.long
async def test_reads_use_the_standby_and_fall_back_to_the_primary(
    world: World, database_url: str, standby: Postgres
) -> None:
    replica_url = standby.url(database_url.rpartition("/")[2])
    config = configured(world, database_url, DATABASE_REPLICA_URLS=replica_url)
    async with staged(world, config, []) as stage:
        wallet = world.wallets.with_role("client")[0]
        client = Party.at(wallet, config.addresses, stage.http)
        first = (await client.post())["job_id"]
        block = int(str(await stage.fetchval("select block_number from index_position")))
        await until_at(replica_url, block)
        before = reads("answered")
        told = await answers(stage, first, wallet.address)
        assert reads("answered") == before + len(READS)
        assert [one["job_id"] for one in told["/evm/jobs"]["jobs"]] == [first]  # type: ignore[index]

        await execute(replica_url, "select pg_wal_replay_pause()")
        tag = (await stage.http.get("/evm/jobs")).headers["etag"]
        second = (await client.post())["job_id"]
        later, behind = await answers(stage, second, wallet.address), reads("behind")
        assert behind >= 1
        jobs = later["/evm/jobs"]
        assert {one["job_id"] for one in jobs["jobs"]} == {first, second}  # type: ignore[index]
        assert jobs["as_of_block"] > told["/evm/jobs"]["as_of_block"]  # type: ignore[index]
        again = await stage.http.get("/evm/jobs", headers={"if-none-match": tag})
        assert again.status_code == 200  # the standby still holds what that tag names; the index does not

        await execute(replica_url, "select pg_wal_replay_resume()")
        block = int(str(await stage.fetchval("select block_number from index_position")))
        await until_at(replica_url, block)
        with anyio.fail_after(60):
            before = reads("answered")
            while reads("answered") == before:  # its pause may not be over
                assert await answers(stage, second, wallet.address) == later
                await anyio.sleep(0.1)

        standby.child.process.send_signal(signal.SIGKILL)
        await anyio.sleep(0.2)
        failed = reads("failed")
        assert await answers(stage, second, wallet.address) == later
        assert reads("failed") > failed
        assert (await stage.http.get("/readyz")).status_code == 200


async def test_a_standby_that_is_away_at_the_start_holds_nothing_up(world: World, database_url: str) -> None:
    config = configured(world, database_url, DATABASE_REPLICA_URLS=f"postgresql://u:p@127.0.0.1:{pick_free()}/svc")
    async with staged(world, config, []) as stage:
        assert (await stage.http.get("/evm/providers")).status_code == 200
