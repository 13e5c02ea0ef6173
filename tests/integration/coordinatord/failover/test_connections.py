"""Peak number of PostgreSQL connections of one process."""

import re
from collections.abc import Callable
from pathlib import Path

import anyio
import asyncpg
import httpx
import pytest

from coordinatord.run.config import read_config
from coordinatord.run.descriptors import database_connections
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment, until

pytestmark = pytest.mark.anyio

BUYERS, JOBS_EACH = 12, 3
PROCESSES = 20
SERVER_SETTINGS = Path(__file__).parents[4] / "config" / "postgresql" / "coordinatord.conf"
OTHERS = 20  # connections reserved for superusers, backups, standbys and operators
_COUNT = (
    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and backend_type = 'client backend'"
)


async def test_peak_of_twelve_buyers_is_within_the_number_of_the_pages(
    world: World, database_url: str, party_at: Callable[[DevWallet, httpx.AsyncClient], Party]
) -> None:
    settings = environment(world, database_url)
    limit = database_connections(read_config(settings))
    assert limit == 16
    settings_file = SERVER_SETTINGS.read_text(encoding="utf-8")
    assert f"up to {limit} connections" in settings_file
    (most,) = re.findall(r"^max_connections = (\d+)$", settings_file, re.MULTILINE)
    assert PROCESSES * limit <= int(most) - OTHERS
    async with (
        running(settings, pick_free(), pick_free()) as coordinator,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        await until(lambda: http.get("/readyz"), 200)
        bodies = await submissions(party_at(world.wallets.with_role("client")[0], http), BUYERS * JOBS_EACH)
        load, counts = Load([coordinator.base_url]), []
        connection = await asyncpg.connect(database_url)
        try:
            async with anyio.create_task_group() as tasks:
                for n in range(BUYERS):
                    tasks.start_soon(load.submit, bodies[n::BUYERS])
                while len(load.posted) < len(bodies):
                    counts.append(await connection.fetchval(_COUNT))
                    await anyio.sleep(0.01)
        finally:
            await connection.close()
    assert max(counts) <= limit
