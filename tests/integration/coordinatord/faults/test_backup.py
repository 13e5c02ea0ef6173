"""The backup that config/postgresql/README.md describes: taken under a working coordinator, restored after a loss."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx
import pytest

from common.address_book import AddressBook
from coordinatord.chain.rpc import open_rpc
from devnet.accounts import DevWallet as DevnetWallet
from devnet.postgres import Postgres, binaries
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import configured, staged
from tests.invariants.funds import fund_violations
from tests.invariants.jobs import job_violations

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[4] / "config" / "postgresql"


def script(heading: str) -> str:
    """The commands that stand under this heading."""
    section = (FOLDER / "README.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(commands)


async def follow(heading: str, url: str, backup: Path) -> None:
    path = f"{binaries()}:{os.environ['PATH']}"
    environment = {"PATH": path, "DATABASE_URL": url, "BACKUP": str(backup)}
    await anyio.run_process(["sh", "-euc", script(heading)], env=environment)


async def test_lost_database_is_restored_and_the_coordinator_goes_on_where_the_chain_is(
    *,
    world: World,
    postgres: Postgres,
    database_url: str,
    book: AddressBook,
    party_at: Callable[[DevnetWallet, httpx.AsyncClient], Party],
    tmp_path: Path,
) -> None:
    wallet = world.cast.with_role("client")[0]
    name = database_url.rpartition("/")[2]
    config = configured(world, database_url)
    async with staged(world, config, []) as stage:
        client = party_at(wallet, stage.http)
        jobs = [(await client.post())["job_id"]]
        await client.sign_in()
        token = client.token
        await follow("Backup", database_url, tmp_path / "backup")
        jobs.append((await client.post())["job_id"])  # of which the backup knows nothing

    await postgres.execute(f"drop database {name} with (force)")
    await postgres.execute(f"create database {name}")
    await follow("Restore", database_url, tmp_path / "backup")

    async with staged(world, config, []) as stage:
        client = party_at(wallet, stage.http)
        jobs.append((await client.post())["job_id"])
        for job in jobs:
            answer = await stage.http.get(f"/v1/jobs/{job}")
            assert (answer.status_code, answer.json().get("status")) == (200, "queued")
        lives = await stage.fetchval("select count(*) from sessions where token_hash = sha256($1)", token.encode())
        assert lives == 1
    promised = {bytes.fromhex(job[2:]) for job in jobs}
    async with open_rpc(world.anvil.rpc_url) as rpc:
        assert await job_violations(rpc, book, promised=promised) == []
        assert await fund_violations(rpc, book, donations=0) == []


async def test_every_documented_setting_is_one_that_the_server_takes(postgres: Postgres) -> None:
    lines = (FOLDER / "coordinatord.conf").read_text(encoding="utf-8").splitlines()
    settings = [line.partition(" = ")[::2] for line in lines if line and not line.startswith("#")]
    assert len(settings) > 10
    try:
        for name, value in settings:
            await postgres.execute(f"alter system set {name} = '{value}'")
    finally:
        await postgres.execute("alter system reset all")
