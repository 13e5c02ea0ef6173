import os

import pytest

# The servers of the tests speak no TLS. asyncpg would ask for it first, and where a connection is given up at just that
# moment it leaves an exception behind that nobody awaits, which fails the test.
os.environ["PGSSLMODE"] = "disable"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests outside of svcd's folders run on asyncio, as the coordinator does."""
    return "asyncio"
