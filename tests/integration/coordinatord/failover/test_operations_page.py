"""Follow the chapter on failover exactly: the primary fails, its standby is promoted, the former one rejoins."""

import os
import sys
from pathlib import Path

import anyio
import asyncpg
import pytest

from devnet import parent_watch
from devnet.postgres import find_binaries
from tests.integration.coordinatord.failover.servers import Pair, started_again, until_streaming
from tests.support.fakes.page_shell import PageShell, chapter

pytestmark = pytest.mark.anyio

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
