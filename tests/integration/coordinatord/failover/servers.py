"""A primary and its standby, and the faults of a failover."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs

from coordinatord.storage.database.migration import migrate
from devnet.child import run_program
from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import DATABASE, SUPERUSER, Postgres, running_postgres, running_standby

_STREAMS: Final = "select count(*) from pg_stat_replication where state = 'streaming' and ($1 = '' or sync_state = $1)"
_SETTINGS: Final = ("wal_log_hints=on", "full_page_writes=on")  # for pg_rewind
_RECEIVES: Final = "select count(*) from pg_stat_wal_receiver"


@attrs.define
class Pair:
    """Two servers at two ports. The roles change places with each failover."""

    primary: Postgres
    standby: Postgres
    synchronous: bool
    folder: Path
    stack: AsyncExitStack
    rejoined: int = 0

    @property
    def url(self) -> str:
        """Return a URL with both hosts, the primary first."""
        return _url(self.primary, self.standby)

    @property
    def url_standby_first(self) -> str:
        return _url(self.standby, self.primary)

    async def fail_over(self) -> None:
        """Lose the primary as in a power cut, and promote the standby."""
        kill(self.primary)
        await promote(self.standby)
        self.primary, self.standby = self.standby, self.primary

    async def rejoin(self) -> None:
        """Replace the lost server by a new copy of the primary, at the lost server's port."""
        self.rejoined += 1
        folder = self.folder / f"rejoined-{self.rejoined}"
        folder.mkdir()
        await self.standby.child.kill()
        copy = running_standby(self.primary, self.standby.port, folder, folder, *_SETTINGS)
        self.standby = await self.stack.enter_async_context(copy)
        await until_streaming(self)


def _url(first: Postgres, second: Postgres) -> str:
    hosts = f"{LOOPBACK}:{first.port},{LOOPBACK}:{second.port}"
    return f"postgresql://{SUPERUSER}:{first.password}@{hosts}/{DATABASE}"


@asynccontextmanager
async def replicated(folder: Path, *, synchronous: bool) -> AsyncIterator[Pair]:
    """Start a migrated primary with one standby that has caught up."""
    for name in ("primary", "standby"):
        (folder / name).mkdir()
    async with AsyncExitStack() as stack:
        empty = running_postgres(pick_free(), folder / "primary", folder, *_SETTINGS)
        primary = await stack.enter_async_context(empty)
        async with _connected(primary) as connection:
            # In the file, where pg_rewind reads it. A disconnected standby can catch up by it, too.
            await connection.execute("alter system set wal_keep_size = '256MB'")
            await connection.execute("select pg_reload_conf()")
            await migrate(connection)
        copy = running_standby(primary, pick_free(), folder / "standby", folder, *_SETTINGS)
        standby = await stack.enter_async_context(copy)
        pair = Pair(primary, standby, synchronous, folder, stack)
        await until_streaming(pair)
        yield pair


@asynccontextmanager
async def started_again(server: Postgres) -> AsyncIterator[Postgres]:
    """Start the server again with its previous settings and folder."""
    async with run_program(server.child.program) as process:
        again = Postgres(server.port, server.password, process)

        async def answers() -> bool:
            try:
                await again.execute("select 1")
            except (OSError, asyncpg.CannotConnectNowError):
                return False
            return True

        await process.wait_until(answers)
        yield again


@asynccontextmanager
async def _connected(server: Postgres) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    connection = await asyncpg.connect(server.url())
    try:
        yield connection
    finally:
        await connection.close()


async def until_streaming(pair: Pair) -> None:
    if pair.synchronous:
        await pair.primary.execute("alter system set synchronous_standby_names = '*'")
        await pair.primary.execute("select pg_reload_conf()")
    async with _connected(pair.primary) as connection:
        with anyio.fail_after(30):
            while not await connection.fetchval(_STREAMS, "sync" if pair.synchronous else ""):  # noqa: ASYNC110 - the event is in another process
                await anyio.sleep(0.02)


async def until_replayed(pair: Pair) -> None:
    """Wait until the standby has replayed everything that the primary has written so far."""
    async with _connected(pair.primary) as primary, _connected(pair.standby) as standby:
        target = await primary.fetchval("select pg_current_wal_lsn()::text")
        with anyio.fail_after(30):
            while not await standby.fetchval("select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", target):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.02)


async def promote(standby: Postgres) -> None:
    """Promote like `pg_ctl promote`, and wait until the standby is a primary. It has no synchronous standby."""
    await standby.execute("alter system reset synchronous_standby_names")
    await standby.execute("select pg_reload_conf()")
    await standby.execute("select pg_promote(true, 60)")


async def cut_replication(standby: Postgres) -> None:
    """Stop replication to the standby."""
    await standby.execute("alter system set primary_conninfo = ''")
    await standby.execute("select pg_reload_conf()")
    async with _connected(standby) as connection:
        with anyio.fail_after(30):
            while await connection.fetchval(_RECEIVES):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.02)


@contextmanager
def frozen(server: Postgres) -> Iterator[None]:
    """Stop every process of the server. The kernel still accepts connections, but no response comes."""
    stopped = _processes(server)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def kill(server: Postgres) -> None:
    """Kill the server like a power cut. No process can shut down cleanly."""
    for pid in _processes(server):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes(server: Postgres) -> list[int]:
    """Return the postmaster first, so that it starts no new processes."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" ")
        except OSError:
            continue  # already exited
        parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    found = [server.child.pid]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found
