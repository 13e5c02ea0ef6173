"""Upgrades and rollbacks by real processes over one database: with migrations that let an older release run, with one
that does not, and one process after the other."""

import re
import subprocess
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from coordinatord.storage.database import migration
from coordinatord.storage.database.migration import migrate
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.database.test_migrations import with_future
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.faults.witnesses import at_work, posted_again
from tests.integration.coordinatord.scene.running import running, start
from tests.integration.coordinatord.scene.stage import environment
from tests.support.faults.next_release import ADDED

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "operators" / "maintenance.md"
MIGRATIONS = "coordinatord/storage/database/migrations/*.sql"  # those of a release never change
NO_HISTORY = "the code of release {version} is not in this checkout (a shallow clone, or a copy without its history)"


async def sell(setup: MarketSetup) -> tuple[str, list[str]]:
    """Start a coordinator, sell a job and stop cleanly. Return the job and the full list of jobs."""
    async with setup.running_coordinator() as (coordinator, http):
        job = (await setup.party(http).post())["job_id"]
        listed = [one["job_id"] for one in (await http.get("/evm/jobs")).json()["jobs"]]
        coordinator.terminate()
        assert await coordinator.exit_status() == 0
    return job, listed


async def upgrade(database_url: str, monkeypatch: pytest.MonkeyPatch, least: str) -> None:
    """Migrate like a future release, with one more migration than this one."""
    future = with_future(least)
    connection = await asyncpg.connect(database_url)
    with monkeypatch.context() as newer:
        newer.setattr(migration, "load_migrations", lambda: future)
        assert "0900_future.sql" in await migrate(connection, "99.0.0")
    await connection.close()


@pytest.mark.long
async def test_release_restarts_after_an_additive_upgrade(setup: MarketSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = await sell(setup)
    await upgrade(setup.database_url, monkeypatch, "0.1.0")
    after, listed = await sell(setup)
    assert {before, after} <= set(listed)
    promised = {bytes.fromhex(job[2:]) for job in (before, after)}
    assert await setup.violations(promised) == []


async def test_release_refuses_a_breaking_upgrade_and_names_it(
    world: World, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upgrade(database_url, monkeypatch, "98.7.6")
    ports = {"PORT": str(pick_free()), "METRICS_PORT": "0"}
    process = start(environment(world, database_url) | ports, errors=subprocess.PIPE)
    told = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 1
    assert "migration 0900, which requires release 98.7.6 or later" in told
    assert "docs/operators/maintenance.md" in told


def has_commit(commit: str) -> bool:
    """Return False in a shallow clone, or in a copy without history."""
    asked = ("git", "cat-file", "-e", f"{commit}^{{commit}}")
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_page_lists_the_commit_of_every_release() -> None:
    """The change log lists the released versions."""
    listed = dict(re.findall(r"^\| ([\d.]+) \|.*\| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = dict(re.findall(r"^## ([\d.]+) \((.+)\)$", changes, re.MULTILINE))
    assert listed.keys() == released.keys()
    for version, commit in listed.items():
        if released[version] == "unreleased":
            assert commit == "not released yet"
            continue
        digest = commit.strip("`")
        assert re.fullmatch("[0-9a-f]{40}", digest)
        if not has_commit(digest):
            pytest.skip(NO_HISTORY.format(version=version))
        asked = ("git", "merge-base", "--is-ancestor", digest, "HEAD")
        assert subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0
        told = subprocess.run(("git", "show", f"{digest}:pyproject.toml"), cwd=ROOT, capture_output=True, check=True)
        assert tomllib.loads(told.stdout.decode())["project"]["version"] == version
        changed = ("git", "diff", "--diff-filter=MDR", "--name-only", digest, "--", MIGRATIONS)
        assert subprocess.run(changed, cwd=ROOT, capture_output=True, check=True).stdout == b""


NEXT_RELEASE = ("tests.support.faults.next_release",)
LINES = 12  # of each batch
_ADDED = "select array_agg(name order by number) from migrations where number >= 900"
_VALID = "select indisvalid from pg_index where indexrelid = 'relays_by_weight'::regclass"


@pytest.mark.long
async def test_rolling_upgrade_loses_and_refuses_nothing(setup: MarketSetup, tmp_path: Path) -> None:
    async with AsyncExitStack() as processes:
        log = processes.enter_context((tmp_path / "others.log").open("wb")).fileno()
        async with at_work(setup, tmp_path) as witnesses:
            market = witnesses.market
            settings = dict(market.settings)
            second = await processes.enter_async_context(running(settings, pick_free(), pick_free(), errors=log))
            market.load.urls = [market.coordinator.base_url, second.base_url]
            for old in (market.coordinator, second):
                await witnesses.create_batch(LINES)
                await posted_again(market)
                old.terminate()
                assert await old.exit_status() == 0
                await posted_again(market)
                newer = running(settings, old.port, old.metrics_port, program=NEXT_RELEASE, errors=log)
                await processes.enter_async_context(newer)
                await posted_again(market)
        assert await witnesses.violations() + witnesses.refused == []
    connection = await asyncpg.connect(setup.database_url)
    try:
        assert await connection.fetchval(_ADDED) == [file.name for file in ADDED.values()]
        assert await connection.fetchval(_VALID)
    finally:
        await connection.close()
