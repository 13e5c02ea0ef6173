"""Separate database errors that a retry may resolve from errors that are bugs of this program."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from coordinatord.base.errors import Retryable

# Errors of PostgreSQL, asyncpg and the operating system when the database or the network fails. A violated constraint
# or a rejected value is a bug of this program instead (see `is_program_bug`).
DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement on a connection that the server is closing
    OSError,  # includes TimeoutError, failed name lookups, missing socket files and a lack of descriptors
)
_PROGRAM_BUG_ERRORS: Final = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)


class NoPrimary(ConnectionError):
    """No host of DATABASE_URL is a primary that this process may use. The message has each host's reason."""


def is_program_bug(error: BaseException) -> bool:
    """Return True if a retry would raise the error again, because the statement or its values are wrong."""
    return isinstance(error, _PROGRAM_BUG_ERRORS)


@contextmanager
def retryable_errors() -> Iterator[None]:
    """Raise Retryable for errors of the database, except bugs. All code uses asyncpg within this context, except code
    that holds a role."""
    try:
        yield
    except DATABASE_ERRORS as error:
        if is_program_bug(error):
            raise
        raise database_unavailable(error) from error


def database_unavailable(cause: BaseException) -> Retryable:
    """Return a Retryable with the code `not_ready`, because the specification has no code for database errors."""
    reason = str(cause) if isinstance(cause, NoPrimary) else type(cause).__name__
    return Retryable("not_ready", f"the database did not answer ({reason}); try again")
