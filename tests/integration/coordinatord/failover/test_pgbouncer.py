"""PgBouncer in front of PostgreSQL: session mode works, transaction mode is refused at start."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from common.daemon.process import Fatal
from coordinatord.storage.database.connections import Connection, open_database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from devnet.child import Program
from devnet.child import run_program as running_child
from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import Postgres
from tests.support.programs.found import program

pytestmark = pytest.mark.anyio

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
