"""A start ends at once when DATABASE_URL is not a PostgreSQL URL, and waits when the server refuses the login."""

import re
from urllib.parse import urlsplit

import anyio
import pytest

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.base.startup import StartupRetry
from coordinatord.storage.database.connections import open_database
from devnet.postgres import Postgres

pytestmark = pytest.mark.anyio


async def _refusal(dsn: str, kind: type[Exception]) -> str:
    with pytest.raises(kind, match="DATABASE_URL") as stopped:
        async with open_database(dsn, max_size=1):
            raise AssertionError("it opened")
    return str(stopped.value)


@pytest.mark.parametrize(
    "dsn",
    ["localhost/svc", "mysql://user:hunter2@localhost/svc", "postgresql://user:hun/ter2@localhost/svc"],
    ids=["no address", "another database's", "a slash in the password"],
)
async def test_malformed_url_is_reported_without_its_password(dsn: str) -> None:
    assert "hun" not in await _refusal(dsn, Fatal)


async def test_missing_database_and_wrong_password_are_reported(database_url: str) -> None:
    assert "no_such" in await _refusal(re.sub("[^/]+$", "no_such", database_url), Retryable)
    password = urlsplit(database_url).password
    assert password is not None
    refusal = await _refusal(database_url.replace(password, "another"), Retryable)
    assert "password authentication failed" in refusal
    assert "another" not in refusal


async def test_start_waits_while_the_login_is_refused(database_url: str, postgres: Postgres) -> None:
    """A coordinator that restarts during a password change must keep trying."""
    name, parts = f"shut_out_{urlsplit(database_url).path[1:]}", urlsplit(database_url)
    await postgres.execute(f"create role {name} password 'word'")  # without `login`
    dsn = parts._replace(netloc=f"{name}:word@{parts.hostname}:{parts.port}").geturl()

    async def opened() -> str:
        async with open_database(dsn, max_size=1) as database, database.connection() as connection:
            return str(await connection.fetchval("select current_user"))

    rejected = anyio.Event()

    async def attempt() -> str:
        try:
            return await opened()
        except Retryable:
            rejected.set()
            raise

    async def restore() -> None:
        await rejected.wait()
        await postgres.execute(f"alter role {name} login")

    with pytest.raises(Retryable, match="not permitted to log in"):
        await opened()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(restore)
        assert await StartupRetry(30, first_pause_s=0.05).retry_until_ready("the database", attempt) == name
    await postgres.execute(f"drop role {name}")
