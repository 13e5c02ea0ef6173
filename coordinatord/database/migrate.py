"""Numbered SQL files, each applied once, in order, under one lock for the whole deployment."""

import hashlib
import re
from importlib import resources

from common.daemon.process import Fatal
from coordinatord.database.connections import Connection

_LOCK = 0x5356_4300  # an arbitrary constant: the advisory lock that migrations hold
# Digests of files that were mended since, to the same effect where they were applied.
_MENDED = {
    # Only a superuser could apply it: it created functions with a SET clause for a setting of our own.
    15: bytes.fromhex("09f3cb12604be74f61439a18187aa0f3f411d64312b85ecaa84da756e512abd0"),
}
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
                if applied[number]["sha256"] not in (digest, _MENDED.get(number)):
                    raise Fatal(f"migration {name} was changed after this database applied it")
                continue
            await connection.execute(sql)
            await connection.execute(
                "insert into migrations (number, name, sha256) values ($1, $2, $3)", number, name, digest
            )
            fresh.append(name)
        return fresh


def _migrations() -> dict[int, tuple[str, str]]:
    found = {}
    for entry in resources.files("coordinatord.database").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found[int(match[1])] = (entry.name, entry.read_text(encoding="utf-8"))
    return found
