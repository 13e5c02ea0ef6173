"""Numbered SQL files, each applied once, in order, under one lock for the whole deployment."""

import hashlib
import re
from importlib import resources

import attrs

from common.daemon.process import Fatal
from coordinatord.database.connections import Connection

_LOCK = 0x5356_4300  # an arbitrary constant: the advisory lock that migrations hold
_NAME = re.compile(r"(\d{4})_[a-z_]+\.sql")


async def migrate(connection: Connection) -> list[str]:
    """Apply what is missing and return its names. Processes that start together wait for the first."""
    files = _migrations()
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(
            "create table if not exists migrations ("
            " number integer primary key, name text not null, sha256 bytea not null,"
            " applied_at timestamptz not null default clock_timestamp())"
        )
        applied = {r["number"]: r for r in await connection.fetch("select number, name, sha256 from migrations")}
        newer = sorted(set(applied) - set(files))
        if newer:
            raise Fatal(f"the database has migration {newer[-1]:04d}, which this version does not know; upgrade first")
        fresh = []
        for number, (name, sql) in sorted(files.items()):
            digest = hashlib.sha256(sql.encode()).digest()
            if number in applied:
                if applied[number]["sha256"] != digest:
                    raise Fatal(f"migration {name} was changed after this database applied it")
                continue
            await connection.execute(sql)
            await connection.execute(
                "insert into migrations (number, name, sha256) values ($1, $2, $3)", number, name, digest
            )
            fresh.append(name)
        return fresh


@attrs.frozen(slots=True)
class SchemaState:
    """A database's migrations beside those of this release."""

    applied: int
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    changed: tuple[str, ...]


async def compare(connection: Connection) -> SchemaState:
    """Reads alone: nothing is applied, and no lock is taken."""
    files = _migrations()
    if await connection.fetchval("select to_regclass('migrations')") is None:
        return SchemaState(0, tuple(name for name, _ in files.values()), (), ())
    rows = await connection.fetch("select number, name, sha256 from migrations order by number")
    applied = {row["number"]: row for row in rows}
    return SchemaState(
        applied=len(applied),
        missing=tuple(name for number, (name, _) in sorted(files.items()) if number not in applied),
        unknown=tuple(row["name"] for number, row in applied.items() if number not in files),
        changed=tuple(
            name
            for number, (name, sql) in sorted(files.items())
            if number in applied and applied[number]["sha256"] != hashlib.sha256(sql.encode()).digest()
        ),
    )


def _migrations() -> dict[int, tuple[str, str]]:
    found = {}
    for entry in resources.files("coordinatord.database").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found[int(match[1])] = (entry.name, entry.read_text(encoding="utf-8"))
    return found
