"""Apply numbered SQL files to the database, each once, in order, under one lock for the whole deployment.

A file begins with the oldest release that can run on the resulting schema:

    -- least release: 0.1.0

The runner stores this release with the migration. An older process that starts later compares its own release with the
stored one of each migration that it does not know. docs/contributors/migrations.md lists what a file may do without
requiring a newer release.

Each file runs in a transaction, together with the row that records it. PostgreSQL runs some statements only outside of
a transaction, such as `create index concurrently`. A file with such statements has a second line:

    -- outside a transaction

Its statements run one by one. Each ends with a semicolon at the end of a line. The file is recorded after the last
statement. When a statement fails or the process dies, the next start runs the whole file again, so every statement must
be idempotent. For example, put `drop index concurrently if exists` before `create index concurrently`, because an
interrupted `create` leaves an invalid index.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Final

import anyio
import attrs
import structlog

from common.daemon.process import RELEASE, Fatal
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.transactions import transaction

log = structlog.get_logger(__name__)

# The oldest PostgreSQL that `make peers` tests.
MIN_SERVER_VERSION: Final = 14
_LOCK_KEY: Final = 0x5356_4300  # advisory lock that a process holds while it migrates; an arbitrary constant
_LOCK_POLL_INTERVAL_S: Final = 0.1
_FILE_NAME_PATTERN: Final = re.compile(r"(\d{4})_[a-z_]+\.sql")
_FILE_HEADER_PATTERN: Final = re.compile(r"-- least release: (\d+\.\d+\.\d+)\n(-- outside a transaction\n)?")
_STATEMENT_END_PATTERN: Final = re.compile(r"(?<=;)[ \t]*\n")


@attrs.frozen(slots=True)
class Migration:
    number: int
    name: str
    sql: str = attrs.field(repr=False)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.sql.encode()).digest()

    @property
    def min_release(self) -> str:
        """Oldest release that can run on the resulting schema."""
        return self._header[1]

    @property
    def in_transaction(self) -> bool:
        return self._header[2] is None

    @property
    def _header(self) -> re.Match[str]:
        if found := _FILE_HEADER_PATTERN.match(self.sql):
            return found
        raise Fatal(
            f"migration {self.name} must begin with `-- least release: X.Y.Z`, the oldest release that can run on it"
        )


@attrs.frozen(slots=True)
class AppliedMigration:
    """Migration that the database has. `min_release` is the oldest release that can run on the resulting schema."""

    number: int
    name: str
    digest: bytes
    min_release: str


async def migrate(connection: Connection, release: str = RELEASE) -> list[str]:
    """Apply missing migrations and return their names. Processes that start together take turns. Raise Fatal when this
    release cannot run on the database's migrations, or when the server is too old."""
    if (refusal := server_version_error(connection.get_server_version().major)) is not None:
        raise Fatal(refusal)
    async with _hold_lock(connection):
        await connection.execute(
            "create table if not exists migrations ("
            " number integer primary key, name text not null, sha256 bytea not null, least_release text not null,"
            " applied_at timestamptz not null default clock_timestamp())"
        )
        files = load_migrations()
        applied = await _read_applied(connection)
        if (refusal := _database_refusal(files, applied, release)) is not None:
            raise Fatal(refusal)
        if unknown := sorted(applied.keys() - files.keys()):
            log.warning("newer database accepted", migrations=unknown)
        missing = [file for number, file in files.items() if number not in applied]
        for file in missing:
            await _apply_migration(connection, file)
        return [file.name for file in missing]


async def _apply_migration(connection: Connection, file: Migration) -> None:
    min_release = file.min_release
    if file.in_transaction:
        async with transaction(connection):
            await connection.execute(file.sql)
            await _record_migration(connection, file, min_release)
    else:
        for statement in filter(str.strip, _STATEMENT_END_PATTERN.split(file.sql)):
            await connection.execute(statement)
        await _record_migration(connection, file, min_release)


async def _record_migration(connection: Connection, file: Migration, min_release: str) -> None:
    await connection.execute(
        "insert into migrations (number, name, sha256, least_release) values ($1, $2, $3, $4)",
        *(file.number, file.name, file.digest, min_release),
    )


@asynccontextmanager
async def _hold_lock(connection: Connection) -> AsyncIterator[None]:
    """Hold the lock on the connection. Poll for the lock: a statement that waits for it would hold a snapshot, and
    `create index concurrently` in the process that has the lock waits until all older snapshots end."""
    while not await connection.fetchval("select pg_try_advisory_lock($1)", _LOCK_KEY):  # noqa: ASYNC110 - another process has it
        await anyio.sleep(_LOCK_POLL_INTERVAL_S)
    try:
        yield
    finally:
        if not connection.is_closed():  # closing the connection also releases the lock
            await connection.execute("select pg_advisory_unlock($1)", _LOCK_KEY)


def server_version_error(major: int) -> str | None:
    """Return an error if PostgreSQL is too old for this release, otherwise None."""
    if major >= MIN_SERVER_VERSION:
        return None
    return (
        f"DATABASE_URL: the server must be PostgreSQL {MIN_SERVER_VERSION} or newer, and is {major}: upgrade it "
        "(with pg_upgrade, or by restoring a dump into a newer server)"
    )


@attrs.frozen(slots=True)
class SchemaState:
    """Difference between the migrations of a database and of this release. `refusal` is the reason why this release
    must not start, or None."""

    applied_count: int
    missing_names: tuple[str, ...]
    unknown_names: tuple[str, ...]
    refusal: str | None


async def compare_schema(connection: Connection) -> SchemaState:
    """Compare the database's migrations with this release's, without applying any and without the lock."""
    files = load_migrations()
    if await connection.fetchval("select to_regclass('migrations')") is None:
        return SchemaState(0, tuple(file.name for file in files.values()), (), None)
    applied = await _read_applied(connection)
    return SchemaState(
        applied_count=len(applied),
        missing_names=tuple(file.name for number, file in files.items() if number not in applied),
        unknown_names=tuple(row.name for number, row in applied.items() if number not in files),
        refusal=_database_refusal(files, applied, RELEASE),
    )


async def _read_applied(connection: Connection) -> dict[int, AppliedMigration]:
    rows = await connection.fetch("select * from migrations order by number")
    return {
        row["number"]: AppliedMigration(row["number"], row["name"], row["sha256"], row.get("least_release"))
        for row in rows
    }


def _database_refusal(files: dict[int, Migration], applied: dict[int, AppliedMigration], release: str) -> str | None:
    """Return an error if this release must not run on the database, otherwise None."""
    for number, row in applied.items():
        if number in files and files[number].digest != row.digest:
            return (
                f"migration {row.name} of the database differs from {files[number].name} of this version: start "
                "the version that created the database, or point DATABASE_URL to an empty database (the index is built "
                "again from the chain)"
            )
    unknown = [row for number, row in applied.items() if number not in files]
    if not unknown:
        return None
    newest = max(unknown, key=lambda row: release_order(row.min_release))
    if release_order(newest.min_release) <= release_order(release):
        return None
    return (
        f"the database has migration {newest.number:04d}, which requires release {newest.min_release} or later, and "
        f"this is release {release}: start the required release, or restore a backup from before the migration "
        "(docs/operators/maintenance.md)"
    )


def release_order(release: str) -> tuple[int, ...]:
    """Return the sort key of a release: its numbers, without a suffix such as `rc1`."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


def load_migrations() -> dict[int, Migration]:
    """Return the migrations of this release by number, in order."""
    found = []
    for entry in resources.files("coordinatord.storage.database").joinpath("migrations").iterdir():
        if match := _FILE_NAME_PATTERN.fullmatch(entry.name):
            found.append(Migration(int(match[1]), entry.name, entry.read_text(encoding="utf-8")))
    return {file.number: file for file in sorted(found, key=lambda file: file.number)}
