"""Connections find the primary among the hosts of DATABASE_URL, also through PgBouncer, and stay below the limit."""

import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import asyncpg
import pytest

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.run.config import read_config
from coordinatord.run.descriptors import database_connections
from coordinatord.storage.database.connections import Connection, open_database
from coordinatord.storage.database.errors import DATABASE_ERRORS
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from devnet.child import Program
from devnet.child import run_program as running_child
from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import Postgres
from devnet.world import World
from tests.integration.coordinatord.failover.servers import Pair, frozen, promote
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.stage import environment, until
from tests.support.programs.found import program

FOUND_WITHIN_S = 6.0  # one statement timeout, one host timeout, and slack


async def _port(connection: Connection) -> int:
    port: int = await connection.fetchval("select current_setting('port')::integer")
    return port


async def _write(connection: Connection) -> int:
    await connection.execute("create table if not exists written (n integer); insert into written values (1)")
    return await _port(connection)


async def test_host_that_is_down_is_skipped(database_url: str) -> None:
    credentials, place = database_url.rsplit("@", 1)
    several = f"{credentials}@{LOOPBACK}:{pick_free()},{place}"
    async with open_database(several, max_size=1) as database:
        assert await database.transact(_port) == int(place.partition("/")[0].rpartition(":")[2])


async def test_standby_is_skipped(synchronous: Pair) -> None:
    async with open_database(synchronous.url_standby_first, max_size=1) as database:
        assert await database.transact(_write) == synchronous.primary.port


async def test_hanging_primary_does_not_hold_up_its_successor(asynchronous: Pair) -> None:
    """Three connections stay on the old primary: a pooled connection, a role's, and a connection that waits in a
    statement."""
    async with open_database(asynchronous.url, max_size=2, statement_timeout_s=2) as database:
        role = await database.connect()
        assert await _port(role) == asynchronous.primary.port
        async with anyio.create_task_group() as tasks:
            with frozen(asynchronous.primary):
                hung = anyio.Event()

                async def wait() -> None:
                    with pytest.raises(DATABASE_ERRORS):
                        await role.fetchval("select 1")
                    hung.set()

                tasks.start_soon(wait)
                await promote(asynchronous.standby)
                with anyio.fail_after(FOUND_WITHIN_S):
                    while True:
                        try:
                            assert await database.transact(_write) == asynchronous.standby.port
                            break
                        except Retryable:
                            continue
                    await hung.wait()
                assert role.is_closed()


async def test_former_primary_that_comes_back_is_refused(asynchronous: Pair) -> None:
    async with open_database(asynchronous.url, max_size=2) as database:
        await promote(asynchronous.standby)
        successor = await database.connect()
        assert await _port(successor) == asynchronous.primary.port  # no client has noticed the promotion
        with frozen(asynchronous.primary):
            seen = await database.connect()
            assert await _port(seen) == asynchronous.standby.port
        assert successor.is_closed()
        await seen.close()
        await asynchronous.standby.child.stop()
        with pytest.raises(Retryable, match="has timeline 1, and a primary of timeline 2 exists"):
            await database.transact(_write)


Bouncing = Callable[[str], AbstractAsyncContextManager[str]]


@pytest.fixture
def bouncing(postgres: Postgres, database_url: str, tmp_path: Path) -> Bouncing:
    """Run PgBouncer in a mode. The block gets the URL of the test's database behind it."""
    pgbouncer = program("pgbouncer")
    if pgbouncer is None:
        pytest.skip("no pgbouncer here; `make programs` fetches it")
    parts = urlsplit(database_url)
    tmp_path.chmod(0o755)  # as root, PgBouncer runs as another account

    @asynccontextmanager
    async def bouncing(mode: str) -> AsyncIterator[str]:
        port, settings = pick_free(), tmp_path / "pgbouncer.ini"
        (tmp_path / "users").write_text(f'"{parts.username}" "{parts.password}"\n')
        settings.write_text(
            f"[databases]\n* = host={LOOPBACK} port={postgres.port}\n[pgbouncer]\nlisten_addr = {LOOPBACK}\n"
            f"listen_port = {port}\nunix_socket_dir =\nauth_type = plain\nauth_file = {tmp_path}/users\n"
            f"pool_mode = {mode}\n"
        )
        command = (pgbouncer, "-q", str(settings))
        bouncer = Program(
            "pgbouncer",
            command,
            tmp_path / "bouncer.log",
            run_as=postgres.child.program.run_as,
            stop_signal=signal.SIGINT,
        )

        async def answers() -> bool:
            try:
                await (await anyio.connect_tcp(LOOPBACK, port)).aclose()
            except OSError:
                return False
            return True

        async with running_child(bouncer) as child:
            await child.wait_until(answers)
            yield parts._replace(netloc=f"{parts.username}:{parts.password}@{LOOPBACK}:{port}").geturl()

    return bouncing


async def _limit(connection: Connection) -> str:
    limit: str = await connection.fetchval("show statement_timeout")
    return limit


async def test_session_mode_keeps_roles_notices_and_timeouts(bouncing: Bouncing) -> None:
    heard, held = anyio.Event(), anyio.Event()
    notices = Notices()

    async def work(_: object) -> None:
        held.set()
        await anyio.sleep_forever()

    async with (
        bouncing("session") as url,
        open_database(url, max_size=2, statement_timeout_s=7) as database,
        notices.subscribe(INDEX_MOVED, lambda _: heard.set()),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(notices.listen, database)
        tasks.start_soon(hold_role, database, "a role", work)
        with anyio.fail_after(30):
            await held.wait()
            assert await database.transact(_limit) == "12s"
            while not heard.is_set():
                async with database.connection() as connection:
                    await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)
                with anyio.move_on_after(0.2):
                    await heard.wait()
        tasks.cancel_scope.cancel()


async def test_transaction_mode_is_refused_with_the_setting_to_use(bouncing: Bouncing) -> None:
    async with bouncing("transaction") as url:
        with pytest.raises(Fatal, match="set pool_mode = session"):
            async with open_database(url, max_size=2):
                pass


BUYERS, JOBS_EACH = 12, 3
PROCESSES = 20
SERVER_SETTINGS = Path(__file__).parents[4] / "config" / "postgresql" / "coordinatord.conf"
OTHERS = 20  # connections reserved for superusers, backups, standbys and operators
_COUNT = (
    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and backend_type = 'client backend'"
)


async def test_peak_of_twelve_buyers_is_within_the_number_of_the_pages(world: World, database_url: str) -> None:
    limit = database_connections(read_config(environment(world, database_url)))
    assert limit == 16
    settings_file = SERVER_SETTINGS.read_text(encoding="utf-8")
    assert f"up to {limit} connections" in settings_file
    (most,) = re.findall(r"^max_connections = (\d+)$", settings_file, re.MULTILINE)
    assert PROCESSES * limit <= int(most) - OTHERS
    setup = MarketSetup(world, database_url)
    async with setup.running_coordinator() as (coordinator, http):
        await until(lambda: http.get("/readyz"), 200)
        bodies = await submissions(setup.party(http), BUYERS * JOBS_EACH)
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
