"""Run transactions whose commit is either confirmed or raises CommitUnconfirmed.

With synchronous replication a COMMIT waits for a standby. A cancel request ends that wait: PostgreSQL then reports
success with a warning, although the standby may not have the transaction. asyncpg sends such a request when a statement
times out or its task is cancelled. So a COMMIT is never cancelled. When it times out, the socket is closed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio
import asyncpg

from coordinatord.storage.database.errors import DATABASE_ERRORS

if TYPE_CHECKING:
    from coordinatord.storage.database.connections import Connection

COMMIT_TIMEOUT_S: Final = 5.0
_ROLLBACK_TIMEOUT_S: Final = 2.0
_NO_TIMEOUT_S: Final = 3600.0  # long, because asyncpg sends a cancel request when its timeout expires


class CommitUnconfirmed(TimeoutError):
    """The transaction may have been committed, and a failover may still lose it. The connection is terminated."""


@asynccontextmanager
async def transaction(connection: "Connection") -> AsyncIterator[None]:
    """Run the block in a transaction. Raise CommitUnconfirmed when the server did not confirm the commit in time."""
    try:
        await connection.execute("BEGIN")
        yield
    except BaseException:
        await _roll_back(connection)
        raise
    await _commit(connection)


async def _roll_back(connection: "Connection") -> None:
    rolled_back = False
    with anyio.move_on_after(_ROLLBACK_TIMEOUT_S, shield=True), suppress(*DATABASE_ERRORS):
        await connection.execute("ROLLBACK")
        rolled_back = True
    if not rolled_back:
        _terminate(connection)


async def _commit(connection: "Connection") -> None:
    doubts: list[str] = []

    def on_timeout() -> None:
        doubts.append(f"no answer in {COMMIT_TIMEOUT_S:g} s")
        _terminate(connection)

    def on_log_message(_: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.severity_en == "WARNING":
            doubts.append(str(message))

    connection.add_log_listener(on_log_message)
    timer = asyncio.get_running_loop().call_later(COMMIT_TIMEOUT_S, on_timeout)
    try:
        with anyio.CancelScope(shield=True):
            await connection.execute("COMMIT", timeout=_NO_TIMEOUT_S)
    except DATABASE_ERRORS as error:
        if doubts:
            raise CommitUnconfirmed(doubts[0]) from error
        raise
    finally:
        timer.cancel()
        with suppress(asyncpg.InterfaceError):  # the connection is closed
            connection.remove_log_listener(on_log_message)
    # The loop delivers the warning before the answer, in the order of the messages.
    if doubts:
        _terminate(connection)
        raise CommitUnconfirmed(doubts[0])


def _terminate(connection: "Connection") -> None:
    """Close the socket without a cancel request."""
    with suppress(asyncpg.InterfaceError):  # a pooled connection may be closed already
        connection.terminate()
