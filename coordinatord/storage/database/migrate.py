"""Numbered SQL files, each applied once, in order, under one lock for the whole deployment.

A file begins with the least release that runs on what it leaves behind:

    -- least release: 0.1.0

It is written beside the migration in the database, so that an older process that starts there later knows, of a file
that it has never seen, whether it may run. UPGRADING.md tells what a file may do to keep that number low.
"""

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final

import attrs
import structlog

from common.daemon.process import RELEASE, Fatal
from coordinatord.storage.database.connections import Connection

log = structlog.get_logger(__name__)

_LOCK = 0x5356_4300  # an arbitrary constant: the advisory lock that migrations hold
# Digests of files that were mended since, to the same effect where they were applied.
_MENDED = {
    # Only a superuser could apply it: it created functions with a SET clause for a setting of our own.
    15: bytes.fromhex("09f3cb12604be74f61439a18187aa0f3f411d64312b85ecaa84da756e512abd0"),
}
_NAME = re.compile(r"(\d{4})_[a-z_]+\.sql")
_HEADER: Final = re.compile(r"-- least release: (\d+\.\d+\.\d+)\n")
FIRST_RELEASE: Final = "0.1.0"
# The oldest PostgreSQL that this release is tried on (`make peers`).
LEAST_SERVER: Final = 14
WITHOUT_HEADER: Final = 19  # migrations up to this one came with the first release, and do not begin so


async def migrate(connection: Connection, release: str = RELEASE) -> list[str]:
    """Apply what is missing and return its names. Processes that start together wait for the first. Fatal when the
    database is of a release that this one does not run beside, or its server too old."""
    if (refusal := server_refusal(connection.get_server_version().major)) is not None:
        raise Fatal(refusal)
    files = _migrations()
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(
            "create table if not exists migrations ("
            " number integer primary key, name text not null, sha256 bytea not null,"
            " applied_at timestamptz not null default clock_timestamp())"
        )
        await connection.execute("alter table migrations add column if not exists least_release text")
        rows = await connection.fetch("select number, name, sha256, least_release from migrations")
        applied = {row["number"]: row for row in rows}
        _check_unknown({n: row["least_release"] for n, row in applied.items() if n not in files}, release)
        fresh = []
        for number, (name, sql) in sorted(files.items()):
            digest = hashlib.sha256(sql.encode()).digest()
            if number in applied:
                if applied[number]["sha256"] not in (digest, _MENDED.get(number)):
                    raise Fatal(f"migration {name} was changed after this database applied it")
                continue
            await connection.execute(sql)
            await connection.execute(
                "insert into migrations (number, name, sha256, least_release) values ($1, $2, $3, $4)",
                *(number, name, digest, least_release(number, name, sql)),
            )
            fresh.append(name)
        return fresh


def server_refusal(major: int) -> str | None:
    """The words for a PostgreSQL that is too old for this release; None where it is not."""
    if major >= LEAST_SERVER:
        return None
    return (
        f"DATABASE_URL: the server must be PostgreSQL {LEAST_SERVER} or newer, and is {major}: upgrade it "
        "(pg_upgrade, or a dump that a newer one restores)"
    )


@attrs.frozen(slots=True)
class SchemaState:
    """A database's migrations beside those of this release. `refusal`: why this release must not start on it, where a
    newer one has migrated it further than this one may run on."""

    applied: int
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    changed: tuple[str, ...]
    refusal: str | None = None


async def compare(connection: Connection) -> SchemaState:
    """Reads alone: nothing is applied, and no lock is taken."""
    files = _migrations()
    if await connection.fetchval("select to_regclass('migrations')") is None:
        return SchemaState(0, tuple(name for name, _ in files.values()), (), ())
    # Tables of before the first least release have no such column.
    rows = await connection.fetch(
        "select m.*, to_jsonb(m) ->> 'least_release' as least from migrations m order by number"
    )
    applied = {row["number"]: row for row in rows}
    try:
        _check_unknown({n: row["least"] for n, row in applied.items() if n not in files}, RELEASE)
        refusal = None
    except Fatal as newer:
        refusal = str(newer)
    return SchemaState(
        refusal=refusal,
        applied=len(applied),
        missing=tuple(name for number, (name, _) in sorted(files.items()) if number not in applied),
        unknown=tuple(row["name"] for number, row in applied.items() if number not in files),
        changed=tuple(
            name
            for number, (name, sql) in sorted(files.items())
            if number in applied and applied[number]["sha256"] != hashlib.sha256(sql.encode()).digest()
        ),
    )


def least_release(number: int, name: str, sql: str) -> str:
    """The oldest release that runs on what this file leaves behind."""
    if found := _HEADER.match(sql):
        return found[1]
    if number > WITHOUT_HEADER:
        raise Fatal(f"migration {name} must begin with `-- least release: X.Y.Z`, the oldest release that it lets run")
    return FIRST_RELEASE


def _check_unknown(unknown: Mapping[int, str | None], release: str) -> None:
    """`unknown`: migrations that a newer release has applied, and the least release of each, if it told one."""
    if not unknown:
        return
    untold = [number for number, least in unknown.items() if least is None]
    if untold:
        raise Fatal(f"the database has migration {max(untold):04d}, which this version does not know; upgrade first")
    number, least = max(((n, str(least)) for n, least in unknown.items()), key=lambda one: release_order(one[1]))
    if release_order(least) > release_order(release):
        raise Fatal(
            f"the database has migration {number:04d}, which lets release {least} or later run, and this is {release}: "
            "start that release, or go back to a backup of before it (UPGRADING.md)"
        )
    log.warning("the database is of a newer release, which lets this one run", migrations=sorted(unknown))


def release_order(release: str) -> tuple[int, ...]:
    """Releases compare by their numbers; what stands behind them (`rc1`) does not count."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


def _migrations() -> dict[int, tuple[str, str]]:
    found = {}
    for entry in resources.files("coordinatord.storage.database").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found[int(match[1])] = (entry.name, entry.read_text(encoding="utf-8"))
    return found
