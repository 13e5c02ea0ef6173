"""Roles that one process at a time may hold: the indexer, a relayer account, the janitor.

A role is a PostgreSQL advisory lock on a connection of its own. The holder does its guarded writes through that very
connection: a process that lost the lock (paused, cut off) has lost the connection too, and its late writes fail instead
of meeting those of its successor.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import asyncpg
import structlog

from common.daemon.process import leaves
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.errors import DATABASE_ERRORS
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.terms_sql import begin_term

log = structlog.get_logger(__name__)

CLAIM_INTERVAL = 1.0  # seconds between attempts; with the death of a process its lock is free at once


_TERM_ENDERS = (Retryable, *DATABASE_ERRORS)


def lock_key(role: str) -> int:
    return int.from_bytes(hashlib.sha256(role.encode()).digest()[:8], "big", signed=True)


async def is_held(reader: "Connection | PreparedConnection", role: str) -> bool:
    """True when any process holds the role."""
    (row,) = await reader.fetch(
        "select exists (select from pg_locks where locktype = 'advisory' and objsubid = 1 and granted"
        " and database = (select oid from pg_database where datname = current_database())"
        " and (classid::bigint << 32 | objid::bigint) = $1) as held",
        lock_key(role),
    )
    return bool(row["held"])


async def holder(connection: Connection, role: str) -> str | None:
    """Address and server process of the connection that holds the role; None when no process holds it."""
    row = await connection.fetchrow(
        "select coalesce(host(a.client_addr), 'local') as address, l.pid from pg_locks l"
        " left join pg_stat_activity a on a.pid = l.pid where l.locktype = 'advisory' and l.objsubid = 1 and l.granted"
        " and l.database = (select oid from pg_database where datname = current_database())"
        " and (l.classid::bigint << 32 | l.objid::bigint) = $1",
        lock_key(role),
    )
    return None if row is None else f"a process at {row['address']} (server process {row['pid']})"


async def hold_role(
    database: Database, role: str, work: Callable[["asyncpg.Connection[asyncpg.Record]"], Awaitable[None]]
) -> None:
    """Run `work` whenever this process holds `role`, until cancelled. `work` gets the connection with the lock. Each
    term begins with a confirmed commit."""
    key = lock_key(role)
    while True:
        try:
            await _one_term(database, role, key, work)
        # A group, because the term is a task group and so may the work be.
        except* _TERM_ENDERS as errors:
            log.warning("role lost", role=role, reason="; ".join(str(t) or type(t).__name__ for t in leaves(errors)))
        await anyio.sleep(CLAIM_INTERVAL)


async def _one_term(
    database: Database,
    role: str,
    key: int,
    work: Callable[["asyncpg.Connection[asyncpg.Record]"], Awaitable[None]],
) -> None:
    connection = await database.connect()
    try:
        while not await connection.fetchval("select pg_try_advisory_lock($1)", key):  # noqa: ASYNC110 - not our event
            await anyio.sleep(CLAIM_INTERVAL)
        await begin_term(connection)
        log.info("role acquired", role=role)
        metrics.roles_held.labels(role).set(1)
        async with anyio.create_task_group() as term:
            # An idle holder would not notice that its connection died, and nobody else's work would wait for it.
            connection.add_termination_listener(lambda _: term.cancel_scope.cancel())
            await work(connection)
            term.cancel_scope.cancel()
    finally:
        metrics.roles_held.labels(role).set(0)
        with anyio.move_on_after(2, shield=True), suppress(*DATABASE_ERRORS):  # it would hide why the term ended
            await connection.close(timeout=1)


_EVERY: Final = 15.0  # seconds: servers are told to end sessions that are idle in a transaction for a minute


@asynccontextmanager
async def kept_open(connection: Connection, every: float = _EVERY) -> AsyncIterator[None]:
    """Transaction kept open over work elsewhere, for the sake of its lock.

    While the block runs, which must not use the connection itself, the server hears of it now and then. When the
    connection is lost, the first statement after the block tells.
    """

    async def speak() -> None:
        while True:
            await anyio.sleep(every)
            try:
                with anyio.CancelScope(shield=True):  # a statement that is cut off would take the connection with it
                    await connection.execute("select")
            except DATABASE_ERRORS:
                return

    failure: Exception | None = None  # raised as it is, not in a group
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(speak)
        try:
            yield
        except Exception as caught:  # handed on below
            failure = caught
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
