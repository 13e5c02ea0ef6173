"""Run coordinator, provider and all kinds of clients while the primary fails and its standby is promoted.

After a synchronous failover every promise holds. After an asynchronous one nothing happens twice, nonces and funds are
right, no response was false, and losses are reported. The chapter on failover works as written."""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import anyio
import asyncpg
import pytest

from coordinatord.storage.database.epoch import TIMELINE_SQL
from devnet import parent_watch
from devnet.postgres import find_binaries
from devnet.world import World
from tests.integration.coordinatord.failover.servers import (
    Pair,
    cut_replication,
    frozen,
    kill,
    started_again,
    until_replayed,
    until_streaming,
)
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.faults.witnesses import at_work, posted_again
from tests.support.fakes.page_shell import PageShell, chapter

WRITES_BACK_S = 2.0  # after the promotion
WRITTEN_WITHIN_S = 15.0
_BEGUN = f"select timeline = {TIMELINE_SQL} from server_epoch"  # noqa: S608 - constants
LOST_S = 3.0  # duration of the commits that the asynchronous standby lacks
LINES = 12  # of each batch


def _primary_of(pair: Pair) -> str:
    """Return the URL of the current primary for the test's reads."""
    return f"{pair.url}?target_session_attrs=read-write"


async def _written_again(pair: Pair) -> float:
    """Return seconds until the first role has begun a term on the promoted server."""
    began = time.monotonic()
    connection = await asyncpg.connect(pair.primary.url())
    try:
        with anyio.fail_after(WRITTEN_WITHIN_S):
            while not await connection.fetchval(_BEGUN):  # noqa: ASYNC110 - the event is in another process
                await anyio.sleep(0.02)
    finally:
        await connection.close()
    return time.monotonic() - began


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_synchronous_failover_keeps_every_promise(
    world: World, tmp_path: Path, synchronous: Pair, times: int
) -> None:
    pair, back = synchronous, []
    setup = MarketSetup(world, _primary_of(pair))
    async with at_work(setup, tmp_path, coordinators_database_url=pair.url, times=times) as witnesses:
        market = witnesses.market
        for _ in range(times):
            await witnesses.create_batch(LINES)
            sessions = len(witnesses.sessions)
            await pair.fail_over()
            back.append(await _written_again(pair))
            await posted_again(market)
            await pair.rejoin()
            await posted_again(market)
            assert len(witnesses.sessions) > sessions
    assert await witnesses.violations() + witnesses.refused == []
    assert witnesses.resets == times
    assert witnesses.write_ahead.broadcasts > 0
    assert statistics.median(back) < WRITES_BACK_S, back


@pytest.mark.long
async def test_broadcast_waits_for_confirmation_of_the_standby(world: World, tmp_path: Path, synchronous: Pair) -> None:
    """The primary fails while its standby hangs and lacks commits."""
    pair = synchronous
    setup = MarketSetup(world, _primary_of(pair))
    async with at_work(setup, tmp_path, coordinators_database_url=pair.url) as witnesses:
        await witnesses.create_batch(LINES)
        with frozen(pair.standby):
            await anyio.sleep(LOST_S)
            kill(pair.primary)
        await pair.fail_over()
        await posted_again(witnesses.market)
    assert await witnesses.violations() + witnesses.refused == []
    assert "forgotten transaction adopted" not in witnesses.market.coordinators_log.read_text()


@pytest.mark.long
async def test_asynchronous_failover_repairs_and_reports_what_was_lost(
    world: World, tmp_path: Path, asynchronous: Pair
) -> None:
    """The standby lacks mined transactions, lines of a batch, a whole batch and sessions."""
    pair = asynchronous
    setup = MarketSetup(world, _primary_of(pair))
    async with at_work(setup, tmp_path, coordinators_database_url=pair.url) as witnesses:
        market = witnesses.market
        await witnesses.create_batch(LINES)
        await until_replayed(pair)
        await cut_replication(pair.standby)
        lost_batch = await witnesses.create_batch(LINES)
        posted, sessions = len(market.load.posted), len(witnesses.sessions)
        await anyio.sleep(LOST_S)
        assert len(market.load.posted) > posted
        assert len(witnesses.sessions) > sessions + 1
        await pair.fail_over()
        await posted_again(market)
        await posted_again(market)
        assert await witnesses.status_code(f"/v1/batches/{lost_batch}", witnesses.owner.token) == 404
        assert await witnesses.status_code("/v1/batches", witnesses.sessions[sessions + 1]) == 401
        del witnesses.batches[lost_batch]
        log = [json.loads(line) for line in market.coordinators_log.read_text().splitlines()]
    violations = await setup.violations(market.load.posted)
    assert violations + await witnesses.write_ahead.found() + await witnesses.false_answers() == []
    assert witnesses.resets == 1
    events = [entry["event"] for entry in log]
    assert "forgotten transaction adopted" in events
    assert events.count("database promoted") == 1


PAGE = Path(__file__).parents[4] / "docs" / "operators" / "maintenance.md"


def _as_postgres(folder: Path, run_as: str) -> Path:
    """Return a program that runs a command as the account of the test's servers."""
    program = folder / "as-postgres"
    watch = f"{sys.executable} -I -S {parent_watch.__file__} $PPID 9 {run_as}"
    program.write_text(f'#!/bin/bash\nexec {watch} "$(command -v "$1")" "${{@:2}}"\n')
    program.chmod(0o755)
    return program


@pytest.mark.long
async def test_failover_follows_the_page(asynchronous: Pair, tmp_path: Path) -> None:
    pair = asynchronous
    variables, fence, promote, rewind = chapter(PAGE, "Failover")
    root = tmp_path / "root"
    root.mkdir()
    shell = PageShell(
        root,
        {
            "PATH": f"{find_binaries()}:{os.environ['PATH']}",
            "AS_POSTGRES": str(_as_postgres(tmp_path, pair.primary.child.program.run_as)),
            "STANDBY_DATA": str(pair.standby.data_directory),
            "STANDBY_URL": pair.standby.url("postgres"),
            "FORMER_URL": pair.primary.url("postgres"),
            "FORMER_DATA": str(pair.primary.data_directory),
        },
    )

    async def follow(block: str) -> str:
        return await anyio.to_thread.run_sync(shell.run, block)

    await follow(variables)
    with pytest.raises(AssertionError, match="the former primary still answers"):
        await follow(fence)
    await pair.primary.execute("create table only_here (n integer)")
    await pair.primary.child.kill()
    await follow(fence)
    await follow(promote)
    former, pair.primary = pair.primary, pair.standby
    await pair.primary.execute("create table written (n integer)")
    await follow(rewind)
    async with started_again(former) as standby:
        pair.standby = standby
        await until_streaming(pair)
        connection = await asyncpg.connect(standby.url("postgres"))
        try:
            assert await connection.fetchval("select pg_is_in_recovery() and to_regclass('written') is not null")
        finally:
            await connection.close()
