"""The PostgreSQL connections of one process.

Transactions are retried as a whole at their edge, and only there: a body handed to `transact` runs again after a
serialization failure, a deadlock or a lost connection, so it must not do anything but SQL.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias, TypeVar

import anyio
import asyncpg
import tenacity

from coordinatord.store.lines import Line
from coordinatord.trouble import Fatal, Retryable

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

# Nothing was committed when one of these is raised before COMMIT was sent; the body may run again.
_AGAIN = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement between the server's farewell and the end of the connection
    ConnectionError,
)
_EXHAUSTED = (asyncpg.TooManyConnectionsError, TimeoutError, asyncpg.DiskFullError)


class Database:
    """A pool, a way to run transactions, and connections of one's own for roles and listening."""

    def __init__(
        self, pool: "asyncpg.Pool[asyncpg.Record]", dsn: str, acquire_timeout: float, lists_at_once: int
    ) -> None:
        self.pool = pool
        self.dsn = dsn
        self._acquire_timeout = acquire_timeout
        self._lists = anyio.Semaphore(lists_at_once)
        self._lines: list[Line] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A pooled connection, for reads and single statements."""
        try:
            async with self.pool.acquire(timeout=self._acquire_timeout) as connection:
                yield connection
        except (*_AGAIN, *_EXHAUSTED) as trouble:
            raise database_trouble(trouble) from trouble

    @asynccontextmanager
    async def connection_for_lists(self) -> AsyncIterator[Connection]:
        """The same for what a caller can make long, as a page far into a list. It leaves half of the pool to others."""
        try:
            with anyio.fail_after(self._acquire_timeout):
                await self._lists.acquire()
        except TimeoutError as trouble:
            raise database_trouble(trouble) from trouble
        try:
            async with self.connection() as connection:
                yield connection
        finally:
            self._lists.release()

    async def transact(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `body` in a transaction, again when it was rolled back through no fault of its own."""
        try:
            async for attempt in _attempts():
                with attempt:
                    async with (
                        self.pool.acquire(timeout=self._acquire_timeout) as connection,
                        connection.transaction(),
                    ):
                        return await body(connection)
        except (*_AGAIN, *_EXHAUSTED) as trouble:
            raise database_trouble(trouble) from trouble
        raise AssertionError("tenacity returns or raises")

    def line(self, patience: float | None = None) -> Line:
        """A connection for one kind of read by key, beside the pool; it ends with the pool."""
        line = Line(self.connect) if patience is None else Line(self.connect, patience)
        self._lines.append(line)
        return line

    def drop_lines(self) -> None:
        for line in self._lines:
            line.drop()

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        """A connection outside the pool, whose life is its owner's: it carries a lock or listens."""
        try:
            return await asyncpg.connect(self.dsn, timeout=self._acquire_timeout)
        except (*_AGAIN, *_EXHAUSTED, OSError) as trouble:
            raise database_trouble(trouble) from trouble


def database_trouble(cause: BaseException) -> Retryable:
    """The database is no part of the specification's vocabulary; to a caller its absence reads as a node not ready."""
    return Retryable("not_ready", f"the database did not answer ({type(cause).__name__}); try again")


def _attempts() -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_AGAIN),
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=1.0),
        reraise=True,
    )


@asynccontextmanager
async def open_database(
    dsn: str, *, smallest: int, largest: int, acquire_timeout: float = 5.0
) -> AsyncIterator[Database]:
    """The pool, closed when the block ends. `Retryable` when the server does not answer, `Fatal` when it will not
    answer to `dsn`, however often it is asked.

    Connections are not reset between uses: nobody sets session state on a pooled connection (`set local` only), and
    the reset costs a third of the throughput of point reads.
    """
    try:
        pool = await asyncpg.create_pool(dsn, min_size=smallest, max_size=largest, reset=_no_reset)
    except ValueError:  # asyncpg's own for a wrong string is one, too; what it says may hold parts of the password
        raise Fatal("DATABASE_URL must be postgresql://user:password@host:port/database") from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as refused:
        raise Fatal(f"DATABASE_URL: {refused}") from None
    except (*_AGAIN, *_EXHAUSTED, OSError) as trouble:
        raise database_trouble(trouble) from trouble
    database = Database(pool, dsn, acquire_timeout, max(1, largest // 2))
    try:
        yield database
    finally:
        database.drop_lines()
        await pool.close()


async def _no_reset(connection: Connection) -> None:
    pass
