"""Read by key over a few connections with prepared statements, which is the cheapest way to read.

All readers of a process share the connections. A read takes the most recently used connection, so that another
connection is opened only when reads overlap.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.errors import DATABASE_ERRORS, database_unavailable, is_program_bug

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.prepared_stmt import PreparedStatement

    Connect = Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]]

READ_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0


class PreparedPool:
    """Pool of up to `size` connections, opened when first needed. `connect` raises Retryable while the database is
    unavailable."""

    def __init__(self, connect: "Connect", size: int) -> None:
        self._idle = [_LazyConnection(connect) for _ in range(size)]
        self._size = size
        self._turns = anyio.Semaphore(size)
        self._ended = False

    def reader(self, timeout_s: float = READ_TIMEOUT_S) -> "PreparedConnection":
        return PreparedConnection(self, timeout_s)

    async def fetch(self, timeout_s: float, query: str, arguments: tuple[object, ...]) -> "list[asyncpg.Record]":
        if self._ended:
            raise Retryable("not_ready", "this process is stopping and no longer reads the database; try again")
        await self._wait_for_turn(timeout_s)
        connection = self._idle.pop()
        try:
            return await connection.fetch(timeout_s, query, arguments)
        finally:
            self._put_back(connection)

    def _put_back(self, connection: "_LazyConnection") -> None:
        if self._ended:
            connection.drop()
        self._idle.append(connection)
        self._turns.release()

    async def _wait_for_turn(self, timeout_s: float) -> None:
        try:
            self._turns.acquire_nowait()
        except anyio.WouldBlock:
            try:
                with anyio.fail_after(timeout_s):
                    await self._turns.acquire()
            except TimeoutError as error:
                raise database_unavailable(error) from error

    async def aclose(self) -> None:
        """Close the idle connections, and wait for running reads, each of which then closes its connection. Cancelling
        a read would leave its statement running in the database."""
        self._ended = True
        for connection in self._idle:
            connection.drop()
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            for _ in range(self._size):
                await self._turns.acquire()


class PreparedConnection:
    """One reader's view of the shared connections, with the timeout of its reads."""

    def __init__(self, pool: PreparedPool, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s

    async def fetch(self, query: str, *arguments: object) -> "list[asyncpg.Record]":
        """Return the rows. If the connection fails, retry once on a new connection. Raise Retryable if the retry fails
        as well, or if the pool is closed."""
        return await self._pool.fetch(self._timeout_s, query, arguments)


class _LazyConnection:
    """Connection with its prepared statements. It is opened on first use and again after it was lost."""

    def __init__(self, connect: "Connect") -> None:
        self._connect = connect
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._statements: dict[str, PreparedStatement[asyncpg.Record]] = {}

    async def fetch(self, timeout_s: float, query: str, arguments: tuple[object, ...]) -> "list[asyncpg.Record]":
        was_open = self._connection is not None
        try:
            return await self._fetch(timeout_s, query, arguments)
        except DATABASE_ERRORS as error:
            self.drop()
            if is_program_bug(error):
                raise
            if not was_open or isinstance(error, TimeoutError):
                raise database_unavailable(error) from error
        return await self.fetch(timeout_s, query, arguments)

    async def _fetch(self, timeout_s: float, query: str, arguments: tuple[object, ...]) -> "list[asyncpg.Record]":
        statement = self._statements.get(query)
        if statement is None:
            if self._connection is None:
                self._connection = await self._connect()
            statement = self._statements[query] = await self._connection.prepare(query, timeout=timeout_s)
        rows: list[asyncpg.Record] = await statement.fetch(*arguments, timeout=timeout_s)
        return rows

    def drop(self) -> None:
        """Close the connection. The next read opens a new one."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
        self._statements = {}
