"""A connection kept for one statement at a time, with its statements prepared: the cheapest way to read by key."""

from typing import TYPE_CHECKING, Final

import asyncpg

from coordinatord.trouble import Retryable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg.prepared_stmt import PreparedStatement

_PATIENCE: Final = 5.0  # seconds for one read by key

# What ends a connection, or its statements when a migration ran under them. Reading again does no harm.
_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
    ConnectionError,
)


class Line:
    """`fetch`, from one task at a time. It connects when first used, and again when the connection was lost."""

    def __init__(
        self, connect: "Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]]", patience: float = _PATIENCE
    ) -> None:
        """`connect` raises Retryable while there is no database. `patience`: seconds for one read."""
        self._connect = connect
        self._patience = patience
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._statements: dict[str, PreparedStatement[asyncpg.Record]] = {}

    async def fetch(self, query: str, *arguments: object) -> "list[asyncpg.Record]":
        """Raises Retryable when the database is away, also after a second attempt on a new connection."""
        kept = self._connection is not None
        try:
            return await self._fetch(query, arguments)
        except _LOST as trouble:
            self.drop()
            if not kept:
                raise _away(trouble) from trouble
        except TimeoutError as trouble:
            self.drop()
            raise _away(trouble) from trouble
        return await self.fetch(query, *arguments)

    def drop(self) -> None:
        """End the connection; the next read opens another."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
        self._statements = {}

    async def _fetch(self, query: str, arguments: tuple[object, ...]) -> "list[asyncpg.Record]":
        statement = self._statements.get(query)
        if statement is None:
            if self._connection is None:
                self._connection = await self._connect()
            statement = self._statements[query] = await self._connection.prepare(query, timeout=self._patience)
        rows: list[asyncpg.Record] = await statement.fetch(*arguments, timeout=self._patience)
        return rows


def _away(cause: BaseException) -> Retryable:
    return Retryable("not_ready", f"the database did not answer ({type(cause).__name__}); try again")
