"""A transaction that is kept open over work elsewhere, for the sake of its lock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import asyncpg

from coordinatord.store.database import Connection

_EVERY: Final = 15.0  # seconds: servers are told to end sessions that are idle in a transaction for a minute


@asynccontextmanager
async def kept_open(connection: Connection, every: float = _EVERY) -> AsyncIterator[None]:
    """While the block runs, which must not use the connection itself, the server hears of it now and then. When the
    connection is lost, the first statement after the block tells."""

    async def speak() -> None:
        while True:
            await anyio.sleep(every)
            try:
                with anyio.CancelScope(shield=True):  # a statement that is cut off would take the connection with it
                    await connection.execute("select")
            except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
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
