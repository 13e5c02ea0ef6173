"""The PostgreSQL connections of one process.

A database may be gone without a word: its machine cut off, its disk hung. Every statement has a time then, and every
socket notices a peer that acknowledges nothing.

Transactions are retried as a whole at their edge, and only there: a body handed to `transact` runs again after a
serialization failure, a deadlock or a lost connection, so it must do nothing but SQL. It must be idempotent, too: where
the connection is lost in the middle of a commit, that may have gone through, and what is left over is at worst what a
crash leaves.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import anyio
import asyncpg
import attrs
import tenacity

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg.prepared_stmt import PreparedStatement

_PATIENCE: Final = 5.0  # seconds for one read by key

# Everything that PostgreSQL, asyncpg and the operating system raise when the database, or the way to it, fails. A
# violated constraint or a value that PostgreSQL rejects is no such failure: it is a bug of ours, see `is_our_bug`.
DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement between the server's farewell and the end of the connection
    OSError,  # TimeoutError is one; so are a name server that is down, a socket file that is gone, no free descriptor
)
_OUR_BUGS: Final = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)


def is_our_bug(error: BaseException) -> bool:
    """True for an error that another attempt would raise again, because our statement or its values are wrong."""
    return isinstance(error, _OUR_BUGS)


@contextmanager
def retryable_errors() -> Iterator[None]:
    """Raise Retryable in place of any failure of the database. Only roles use asyncpg outside of this block."""
    try:
        yield
    except DATABASE_ERRORS as error:
        if is_our_bug(error):
            raise
        raise database_unavailable(error) from error


class PreparedConnection:
    """Connection kept for one statement at a time, with its statements prepared: the cheapest way to read by key.

    `fetch`, from one task at a time. It connects when first used, and again when the connection was lost.
    """

    def __init__(
        self, connect: "Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]]", patience: float = _PATIENCE
    ) -> None:
        """`connect` raises Retryable while there is no database. `patience`: seconds for one read."""
        self._connect = connect
        self._patience = patience
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._statements: dict[str, PreparedStatement[asyncpg.Record]] = {}
        self._reading = False
        self._ended: anyio.Event | None = None  # once it is to end; set when nothing is read any more

    async def fetch(self, query: str, *arguments: object) -> "list[asyncpg.Record]":
        """Raises Retryable when the database is away, also after a second attempt on a new connection; and once the
        line has ended."""
        kept = self._connection is not None
        try:
            self._reading = True
            return await self._fetch(query, arguments)
        except DATABASE_ERRORS as error:
            self.drop()
            if is_our_bug(error):
                raise
            if not kept or isinstance(error, TimeoutError):
                raise database_unavailable(error) from error
        finally:
            self._reading = False
            if self._ended is not None:
                self._ended.set()
        return await self.fetch(query, *arguments)

    async def end(self) -> None:
        """For good, after the statement that is under way: nobody may wait for that one any more, and cut off it would
        be left to itself."""
        self._ended = anyio.Event()
        if self._reading:
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await self._ended.wait()
        self.drop()

    def drop(self) -> None:
        """End the connection; the next read opens another."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
        self._statements = {}

    async def _fetch(self, query: str, arguments: tuple[object, ...]) -> "list[asyncpg.Record]":
        if self._ended is not None:
            raise Retryable("not_ready", "the database is not read any more: this process ends")
        statement = self._statements.get(query)
        if statement is None:
            if self._connection is None:
                self._connection = await self._connect()
            statement = self._statements[query] = await self._connection.prepare(query, timeout=self._patience)
        rows: list[asyncpg.Record] = await statement.fetch(*arguments, timeout=self._patience)
        return rows


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

_STATEMENT_TIMEOUT: Final = 10.0
_ROLES_SHARE: Final = 10  # times as long for a connection of one's own: the indexer writes ranges, the janitor sweeps
_SERVERS_MARGIN: Final = 5.0  # seconds after which the server gives up by itself what we did
_CLOSING_SECONDS: Final = 5.0
# A peer that acknowledges nothing for so long is gone: bytes that were sent, then probes of a connection that waits.
_UNACKNOWLEDGED_SECONDS: Final = 20
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Database:
    """A pool, a way to run transactions, and connections of one's own for roles and listening."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        dsn: str,
        acquire_timeout: float,
        lists_at_once: int,
        statement_timeout: float = _STATEMENT_TIMEOUT,
    ) -> None:
        self.pool = pool
        self.dsn = dsn
        self._acquire_timeout = acquire_timeout
        self._statement_timeout = statement_timeout
        self._lists = anyio.Semaphore(lists_at_once)
        self._prepared: list[PreparedConnection] = []

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
                        connection.transaction(),
                    ):
                        return await body(connection)
        raise AssertionError("tenacity returns or raises")

    def prepared_connection(self, patience: float | None = None) -> PreparedConnection:
        """A connection for one kind of read by key, beside the pool; it ends with the pool."""
        line = PreparedConnection(self.connect) if patience is None else PreparedConnection(self.connect, patience)
        self._prepared.append(line)
        return line

    async def end_prepared(self) -> None:
        async with anyio.create_task_group() as tasks:
            for line in self._prepared:
                tasks.start_soon(line.end)

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
            connection = await asyncpg.connect(
                self.dsn, timeout=self._acquire_timeout, command_timeout=statement_timeout
            )
        await _notice_silence(connection)
        return connection


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


def database_unavailable(cause: BaseException) -> Retryable:
    """Retryable that a caller reads as a node not ready: the specification has no word for the database."""
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
    dsn: str,
    *,
    smallest: int,
    largest: int,
    acquire_timeout: float = 5.0,
    statement_timeout: float = _STATEMENT_TIMEOUT,
) -> AsyncIterator[Database]:
    """Open the pool, and close it when the block ends. Raise Retryable when the server does not answer or refuses the
    login, Fatal when `dsn` is not a PostgreSQL URL. `statement_timeout`: seconds for one statement of the pool.

    Connections are not reset between uses: nobody sets session state on a pooled connection (`set local` only), and
    the reset costs a third of the throughput of point reads.
    """
    try:
        pool = await asyncpg.create_pool(
            dsn,
            min_size=smallest,
            max_size=largest,
            reset=_no_reset,
            init=_notice_silence,
            command_timeout=statement_timeout,
            # The server, too: it would work on for nobody when it never heard that we gave up.
            server_settings={"statement_timeout": str(round((statement_timeout + _SERVERS_MARGIN) * 1000))},
        )
    except ValueError:  # asyncpg's own for a wrong string is one, too; what it says may hold parts of the password
        raise Fatal("DATABASE_URL must be postgresql://user:password@host:port/database") from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as refused:
        # The server may accept it a moment later: a password is being changed, a database restored.
        raise Retryable("not_ready", f"DATABASE_URL: {refused}") from None
    except DATABASE_ERRORS as error:
        raise database_unavailable(error) from error
    database = Database(pool, dsn, acquire_timeout, max(1, largest // 2), statement_timeout)
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


async def _notice_silence(connection: Connection) -> None:
    """asyncpg leaves the kernel's patience as it is: a quarter of an hour for bytes that nobody acknowledges."""
    # A private member: asyncpg has no public way to its socket. test_silent_database.py fails without it.
    opened = connection._transport.get_extra_info("socket")
    if opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_SECONDS * 1000)
    for option, value in _KEEPALIVE:
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
