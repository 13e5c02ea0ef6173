"""Roles that one process at a time may hold: the indexer, a relayer account, the janitor.

A role is a PostgreSQL advisory lock on a dedicated connection. The holder does its guarded writes through the same
connection. So a process that lost the lock, because it was paused or disconnected, has also lost the connection. Its
late writes fail and cannot conflict with writes of the next holder.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import asyncpg
import structlog

from common.daemon.process import leaf_exceptions
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.errors import DATABASE_ERRORS
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.terms_sql import begin_term

log = structlog.get_logger(__name__)

ROLE_POLL_INTERVAL_S = 1.0
# Servers may end a session that is idle in a transaction for a minute.
_KEEPALIVE_INTERVAL_S: Final = 15.0


_TERM_ENDING_ERRORS = (Retryable, *DATABASE_ERRORS)


def lock_key(role: str) -> int:
    return int.from_bytes(hashlib.sha256(role.encode()).digest()[:8], "big", signed=True)


async def is_role_held(reader: "Connection | PreparedConnection", role: str) -> bool:
    """Return True if any process holds the role."""
    (row,) = await reader.fetch(
        "select exists (select from pg_locks where locktype = 'advisory' and objsubid = 1 and granted"
        " and database = (select oid from pg_database where datname = current_database())"
        " and (classid::bigint << 32 | objid::bigint) = $1) as held",
        lock_key(role),
    )
    return bool(row["held"])


async def find_role_holder(connection: Connection, role: str) -> str | None:
    """Return address and server process of the connection that holds the role, or None if no process holds it."""
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
    term (the time for which the role is held) begins with a commit that the database has confirmed."""
    key = lock_key(role)
    while True:
        try:
            await _run_term(database, role, key, work)
        # except*, because task groups wrap their errors in groups.
        except* _TERM_ENDING_ERRORS as errors:
            log.warning(
                "role lost", role=role, reason="; ".join(str(t) or type(t).__name__ for t in leaf_exceptions(errors))
            )
        await anyio.sleep(ROLE_POLL_INTERVAL_S)


async def _run_term(
    database: Database,
    role: str,
    key: int,
    work: Callable[["asyncpg.Connection[asyncpg.Record]"], Awaitable[None]],
) -> None:
    connection = await database.connect()
    try:
        while not await connection.fetchval("select pg_try_advisory_lock($1)", key):  # noqa: ASYNC110 - not our event
            await anyio.sleep(ROLE_POLL_INTERVAL_S)
        await begin_term(connection)
        log.info("role acquired", role=role)
        metrics.roles_held.labels(role).set(1)
        async with anyio.create_task_group() as term:
            # An idle holder does not use its connection, so only this listener notices that the connection was lost.
            connection.add_termination_listener(lambda _: term.cancel_scope.cancel())
            await work(connection)
            term.cancel_scope.cancel()
    finally:
        metrics.roles_held.labels(role).set(0)
        # An error of `close` would hide why the term ended.
        with anyio.move_on_after(2, shield=True), suppress(*DATABASE_ERRORS):
            await connection.close(timeout=1)


@asynccontextmanager
async def keep_transaction_open(
    connection: Connection, interval_s: float = _KEEPALIVE_INTERVAL_S
) -> AsyncIterator[None]:
    """Keep a transaction and its locks alive while the block does work outside the database.

    The block must not use the connection. A statement every few seconds keeps the server from ending the idle session.
    If the connection is lost, the first statement after the block raises.
    """

    async def keep_alive() -> None:
        while True:
            await anyio.sleep(interval_s)
            try:
                with anyio.CancelScope(shield=True):  # cancelling a statement would close the connection
                    await connection.execute("select")
            except DATABASE_ERRORS:
                return

    failure: Exception | None = None  # kept to be raised outside of the task group, which would wrap it
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_alive)
        try:
            yield
        except Exception as caught:  # raised below
            failure = caught
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
