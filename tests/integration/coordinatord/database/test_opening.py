"""A connection string that no patience mends stops the boot at once, by the variable's name."""

import re
from urllib.parse import urlsplit

import pytest

from common.daemon.process import Fatal
from coordinatord.database.connections import open_database

pytestmark = pytest.mark.anyio


async def _told(dsn: str) -> str:
    with pytest.raises(Fatal, match="DATABASE_URL") as stopped:
        async with open_database(dsn, smallest=1, largest=1):
            raise AssertionError("it opened")
    return str(stopped.value)


@pytest.mark.parametrize(
    "dsn",
    ["localhost/svc", "mysql://user:hunter2@localhost/svc", "postgresql://user:hun/ter2@localhost/svc"],
    ids=["no address", "another database's", "a slash in the password"],
)
async def test_what_is_no_connection_string_is_said_without_its_password(dsn: str) -> None:
    assert "hun" not in await _told(dsn)


async def test_database_that_does_not_exist_and_password_that_is_wrong_are_said(database_url: str) -> None:
    assert "no_such" in await _told(re.sub("[^/]+$", "no_such", database_url))
    password = urlsplit(database_url).password
    assert password is not None
    told = await _told(database_url.replace(password, "another"))
    assert "password authentication failed" in told
    assert "another" not in told
