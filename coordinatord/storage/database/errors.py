"""Failures of the database, and which of them another attempt may mend."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from coordinatord.base.errors import Retryable

# Everything that PostgreSQL, asyncpg and the operating system raise when the database, or the way to it, fails. A
# violated constraint or a value that PostgreSQL rejects is no such failure: it is a bug of ours, see `is_our_bug`.
DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement between the server's farewell and the end of the connection
    OSError,  # TimeoutError is one; so are a name server that is down, a socket file that is gone, no free descriptor
)
_OUR_BUGS: Final = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)


class NoPrimary(ConnectionError):
    """No host of DATABASE_URL is a primary that this process may use. The message has each host's reason."""


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


def database_unavailable(cause: BaseException) -> Retryable:
    """Retryable that a caller reads as a node not ready: the specification has no word for the database."""
    reason = str(cause) if isinstance(cause, NoPrimary) else type(cause).__name__
    return Retryable("not_ready", f"the database did not answer ({reason}); try again")
