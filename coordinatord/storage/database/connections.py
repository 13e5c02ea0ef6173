"""The PostgreSQL connections of one process.

A database may be gone without a word: its machine cut off, its disk hung. So every statement has a timeout.

Transactions are retried as a whole at their edge, and only there: a body handed to `transact` runs again after a
serialization failure, a deadlock or a lost connection, so it must do nothing but SQL. It must be idempotent, too: where
the connection is lost in the middle of a commit, that may have gone through, and what is left over is at worst what a
crash leaves.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import anyio
import asyncpg
import attrs
import tenacity

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.errors import DATABASE_ERRORS, database_unavailable, retryable_errors
from coordinatord.storage.database.prepared import READ_TIMEOUT_S, PreparedConnection, PreparedPool
from coordinatord.storage.database.primary import Primary
from coordinatord.storage.database.transactions import transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

# Errors after which a transaction is tried again at once. The other failures need time: the caller hears of them.
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

PREPARED_CONNECTIONS: Final = 3  # that the readers of a process share
STATEMENT_TIMEOUT_S: Final = 10.0
_ROLES_SHARE: Final = 10  # times as long for a connection of one's own: the indexer writes ranges, the janitor sweeps
_SERVERS_MARGIN: Final = 5.0  # seconds after which the server gives up by itself what we did
_CLOSING_SECONDS: Final = 5.0


class Database:
    """A pool, a way to run transactions, and connections of one's own for roles and listening."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        primary: Primary,
        acquire_timeout: float,
        lists_at_once: int,
        statement_timeout: float = STATEMENT_TIMEOUT_S,
    ) -> None:
        self.pool = pool
        self.primary = primary
        self._acquire_timeout = acquire_timeout
        self._statement_timeout = statement_timeout
        self._lists = anyio.Semaphore(lists_at_once)
        self._prepared = PreparedPool(self.connect, PREPARED_CONNECTIONS)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A pooled connection, for reads and single statements."""
        with retryable_errors():
            async with self.pool.acquire(timeout=self._acquire_timeout) as connection:
                yield connection

    @asynccontextmanager
    async def connection_for_lists(self) -> AsyncIterator[Connection]:
        """The same for what a caller can make long, as a page far into a list. It leaves half of the pool to others."""
        try:
            with anyio.fail_after(self._acquire_timeout):
                await self._lists.acquire()
        except TimeoutError as error:
            raise database_unavailable(error) from error
        try:
            async with self.connection() as connection:
                yield connection
        finally:
            self._lists.release()

    async def transact(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `body` in a transaction, again when it was rolled back through no fault of its own."""
        with retryable_errors():
            async for attempt in _attempts():
                with attempt:
                    async with (
                        self.pool.acquire(timeout=self._acquire_timeout) as connection,
                        transaction(connection),
                    ):
                        return await body(connection)
        raise AssertionError("tenacity returns or raises")

    def prepared_connection(self, timeout_s: float = READ_TIMEOUT_S) -> PreparedConnection:
        """Reader by key, beside the pool. It ends with the pool."""
        return self._prepared.reader(timeout_s)

    async def end_prepared(self) -> None:
        await self._prepared.end()

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        """A connection outside the pool, whose life is its owner's: it carries a lock or listens."""
        return await self._connect(_ROLES_SHARE * self._statement_timeout)

    @asynccontextmanager
    async def unhurried(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        """A connection whose statements may take any time, as those of migrations do."""
        connection = await self._connect(None)
        try:
            with retryable_errors():
                yield connection
        finally:
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await connection.close(timeout=_CLOSING_SECONDS)

    async def _connect(self, statement_timeout: float | None) -> "asyncpg.Connection[asyncpg.Record]":
        with retryable_errors():
            return await self.primary.connect(statement_timeout)


async def is_read_only(line: PreparedConnection) -> bool:
    """True when new transactions may not write: by a setting, or because the server is a standby."""
    (row,) = await line.fetch("select current_setting('transaction_read_only')::boolean as read_only")
    return bool(row["read_only"])


@attrs.frozen(slots=True)
class ServerFacts:
    """Of PostgreSQL itself. `clock`: its time, in Unix seconds."""

    version: str
    max_connections: int
    clock: float


async def server_facts(connection: Connection) -> ServerFacts:
    row = await connection.fetchrow(
        "select current_setting('server_version') as version, current_setting('max_connections')::integer as most,"
        " extract(epoch from clock_timestamp())::float8 as clock"
    )
    return ServerFacts(row["version"], row["most"], row["clock"])


def _attempts() -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_AGAIN),
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=1.0),
        reraise=True,
    )


@asynccontextmanager
async def open_database(
    dsn: str,
    *,
    smallest: int,
    largest: int,
    acquire_timeout: float = 5.0,
    statement_timeout: float = STATEMENT_TIMEOUT_S,
    standby: bool = False,
) -> AsyncIterator[Database]:
    """Open the pool, and close it when the block ends. Raise Retryable when the server does not answer or refuses the
    login, Fatal when `dsn` is not a PostgreSQL URL or names a pooler that does not keep sessions.

    `statement_timeout`: seconds for one statement of the pool. The server ends a statement a little later, because it
    may not hear that the client gave up. `standby`: the URL is a standby's.

    Connections are not reset between uses: nobody sets session state on a pooled connection (`set local` only), and
    the reset costs a third of the throughput of point reads.
    """

    async def connect(*_: object, **__: object) -> "asyncpg.Connection[asyncpg.Record]":
        return await primary.connect(statement_timeout, statement_timeout + _SERVERS_MARGIN)

    try:
        primary = Primary(dsn, timeout_s=acquire_timeout, standby=standby)
        if smallest > 0:
            await primary.refuse_transaction_pooling()
        pool = await asyncpg.create_pool(connect=connect, min_size=smallest, max_size=largest, reset=_no_reset)
    except ValueError:  # asyncpg's own for a wrong string is one, too; what it says may hold parts of the password
        raise Fatal("DATABASE_URL must be postgresql://user:password@host:port/database") from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as refused:
        # The server may accept it a moment later: a password is being changed, a database restored.
        raise Retryable("not_ready", f"DATABASE_URL: {refused}") from None
    except DATABASE_ERRORS as error:
        raise database_unavailable(error) from error
    database = Database(pool, primary, acquire_timeout, max(1, largest // 2), statement_timeout)
    try:
        yield database
    finally:
        await database.end_prepared()
        try:
            with anyio.fail_after(_CLOSING_SECONDS):
                await pool.close()
        except TimeoutError:  # it does not even answer to that
            pool.terminate()


async def _no_reset(connection: Connection) -> None:
    pass
