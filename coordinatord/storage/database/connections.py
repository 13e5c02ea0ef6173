"""PostgreSQL connections of one process.

A database may stop responding without closing its connections, so every statement has a timeout.

`transact` retries its whole body after a serialization failure, a deadlock or a lost connection. So a body must only
run SQL. It must also be idempotent, because a connection that is lost during a commit leaves the outcome unknown.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

import anyio
import asyncpg
import attrs
import tenacity

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.errors import DATABASE_ERRORS, database_unavailable, retryable_errors
from coordinatord.storage.database.prepared import READ_TIMEOUT_S, PreparedConnection, PreparedPool
from coordinatord.storage.database.primary import PrimaryConnector
from coordinatord.storage.database.transactions import transaction

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

# Errors after which a transaction is retried immediately. Other errors are raised to the caller.
_RETRIED_ERRORS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement on a connection that the server is closing
    ConnectionError,
)

# Number of connections that all `PreparedConnection`s of a process share.
PREPARED_CONNECTION_COUNT: Final = 3
STATEMENT_TIMEOUT_S: Final = 10.0
# Processes that hold a role run longer statements, on their dedicated connections.
_ROLE_TIMEOUT_FACTOR: Final = 10
# Seconds by which the server's statement timeout exceeds the client's.
_SERVER_MARGIN_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 5.0


class Database:
    """Connection pool with transactions, and dedicated connections for roles and listening."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        primary: PrimaryConnector,
        acquire_timeout_s: float,
        max_list_connections: int,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    ) -> None:
        self.pool = pool
        self.primary = primary
        self._acquire_timeout_s = acquire_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._list_connections = anyio.Semaphore(max_list_connections)
        self._prepared = PreparedPool(self.connect, PREPARED_CONNECTION_COUNT)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a pooled connection for reads and single statements."""
        with retryable_errors():
            async with self.pool.acquire(timeout=self._acquire_timeout_s) as connection:
                yield connection

    @asynccontextmanager
    async def connection_for_lists(self) -> AsyncIterator[Connection]:
        """Lend a pooled connection for queries that a caller can make slow. Such queries use at most half of the
        pool."""
        try:
            with anyio.fail_after(self._acquire_timeout_s):
                await self._list_connections.acquire()
        except TimeoutError as error:
            raise database_unavailable(error) from error
        try:
            async with self.connection() as connection:
                yield connection
        finally:
            self._list_connections.release()

    async def transact(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `body` in a transaction. Retry after a serialization failure, a deadlock or a lost connection."""
        with retryable_errors():
            async for attempt in _transaction_attempts():
                with attempt:
                    async with (
                        self.pool.acquire(timeout=self._acquire_timeout_s) as connection,
                        transaction(connection),
                    ):
                        return await body(connection)
        raise AssertionError("tenacity returns or raises")

    def prepared_connection(self, timeout_s: float = READ_TIMEOUT_S) -> PreparedConnection:
        """Return a reader for lookups by key. The reader's connections are separate from the pool and are closed
        together with the pool."""
        return self._prepared.reader(timeout_s)

    async def close_prepared(self) -> None:
        await self._prepared.aclose()

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        """Open a dedicated connection, for a lock or for listening. The caller closes it."""
        return await self._connect(_ROLE_TIMEOUT_FACTOR * self._statement_timeout_s)

    @asynccontextmanager
    async def connection_without_timeout(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        """Open a connection without a statement timeout, for migrations."""
        connection = await self._connect(None)
        try:
            with retryable_errors():
                yield connection
        finally:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await connection.close(timeout=_CLOSE_TIMEOUT_S)

    async def _connect(self, statement_timeout_s: float | None) -> "asyncpg.Connection[asyncpg.Record]":
        with retryable_errors():
            return await self.primary.connect(statement_timeout_s)


async def is_read_only(reader: PreparedConnection) -> bool:
    """Return True if new transactions cannot write, by a setting or because the server is a standby."""
    (row,) = await reader.fetch("select current_setting('transaction_read_only')::boolean as read_only")
    return bool(row["read_only"])


@attrs.frozen(slots=True)
class ServerFacts:
    """Facts about the PostgreSQL server. `unix_time` is its time in Unix seconds."""

    version: str
    max_connections: int
    unix_time: float


async def read_server_facts(connection: Connection) -> ServerFacts:
    row = await connection.fetchrow(
        "select current_setting('server_version') as version, current_setting('max_connections')::integer as most,"
        " extract(epoch from clock_timestamp())::float8 as clock"
    )
    return ServerFacts(row["version"], row["most"], row["clock"])


def _transaction_attempts() -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_RETRIED_ERRORS),
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=1.0),
        reraise=True,
    )


@asynccontextmanager
async def open_database(
    dsn: str,
    *,
    max_size: int,
    acquire_timeout_s: float = 5.0,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    standby: bool = False,
) -> AsyncIterator[Database]:
    """Open the pool, and close it when the block ends. Raise Retryable when the server does not answer or refuses the
    login, Fatal when `dsn` is not a PostgreSQL URL or names a pooler that does not keep sessions.

    `statement_timeout_s` is the timeout of each statement of the pool. The server's own timeout is a little
    longer, and ends statements for which the client's cancel request was lost. `standby` is True if the URL names a
    standby.

    Connections are not reset between uses, because a reset costs a third of the throughput of point reads. So code that
    uses a pooled connection must not set session state, except with `set local`.
    """

    async def connect(*_: object, **__: object) -> "asyncpg.Connection[asyncpg.Record]":
        return await primary.connect(statement_timeout_s, statement_timeout_s + _SERVER_MARGIN_S)

    try:
        primary = PrimaryConnector(dsn, timeout_s=acquire_timeout_s, standby=standby)
        if not standby:
            await primary.refuse_transaction_pooling()
        # With a minimum size, asyncpg restores lost connections in a background task, which can outlive the pool.
        pool = await asyncpg.create_pool(connect=connect, min_size=0, max_size=max_size, reset=_no_reset)
    except ValueError:  # from asyncpg, whose message may contain parts of the password
        raise Fatal("DATABASE_URL must be postgresql://user:password@host:port/database") from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as refused:
        # Retryable, because the password may just be changing, or the database may be being restored.
        raise Retryable("not_ready", f"DATABASE_URL: {refused}") from None
    except DATABASE_ERRORS as error:
        raise database_unavailable(error) from error
    database = Database(pool, primary, acquire_timeout_s, max(1, max_size // 2), statement_timeout_s)
    try:
        yield database
    finally:
        await database.close_prepared()
        try:
            with anyio.fail_after(_CLOSE_TIMEOUT_S):
                await pool.close()
        except TimeoutError:
            pool.terminate()


async def _no_reset(connection: Connection) -> None:
    pass
