"""One process's cached sessions, while others revoke them."""

from collections.abc import AsyncIterator

import attrs
import pytest

from coordinatord.api.sessions.sessions import SessionCache
from coordinatord.api.sessions.sessions_sql import MAX_SESSIONS, add_nonce, delete_expired_sessions, open_session
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate

pytestmark = pytest.mark.anyio

ADDRESS = b"\x01" * 20


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=2) as pool:
        async with pool.connection() as connection:
            await migrate(connection)
        yield pool


async def opened(database: Database, number: int, address: bytes = ADDRESS) -> bytes:
    token_hash = number.to_bytes(32, "big")

    async def body(connection: Connection) -> None:
        await add_nonce(connection, str(number), address, "anybody")
        assert await open_session(connection, str(number), token_hash, address, None) is not None

    await database.transact(body)
    return token_hash


async def test_session_evicted_elsewhere_is_soon_rejected(database: Database) -> None:
    clock = Clock()
    here = SessionCache(database, clock)
    first, other = await opened(database, 1), await opened(database, 99, b"\x02" * 20)
    assert await here.find(first) == SessionRow(ADDRESS, None)
    for number in range(2, MAX_SESSIONS + 2):
        await opened(database, number)
    clock.now += 0.06
    assert await here.find(first) is None
    assert await here.find(other) == SessionRow(b"\x02" * 20, None)


async def test_session_that_is_evicted_here_is_not_found_any_more(database: Database) -> None:
    here = SessionCache(database, Clock())
    first = await opened(database, 1)
    assert await here.find(first) is not None
    assert await here.find(first) is not None
    for number in range(2, MAX_SESSIONS + 2):
        await opened(database, number)
    await here.refresh_revocations()
    assert await here.find(first) is None


async def test_transaction_made_again_finds_the_session_that_it_opened(database: Database) -> None:
    """The commit succeeded while the connection broke. The retry finds the nonce used."""
    token_hash = await opened(database, 1)

    async def again(connection: Connection) -> list[int | None]:
        return [await open_session(connection, "1", token, ADDRESS, None) for token in (token_hash, b"\x09" * 32)]

    ends, other = await database.transact(again)
    stored = await database.pool.fetchval("select floor(extract(epoch from expires_at))::bigint from sessions")
    assert (ends, other) == (stored, None)


@pytest.mark.long
async def test_session_is_returned_despite_a_database_failure(database: Database) -> None:
    here = SessionCache(database, Clock())
    await database.close_prepared()
    with pytest.raises(Retryable):
        await here.find(b"\x01" * 32)
    await here.refresh_revocations()


async def test_session_is_not_found_past_its_end(database: Database) -> None:
    clock = Clock()
    here = SessionCache(database, clock)
    token_hash = await opened(database, 1)
    await database.pool.execute("update sessions set expires_at = clock_timestamp() + interval '0.4 seconds'")
    assert await here.find(token_hash) is not None
    await database.pool.execute("select pg_sleep(0.5)")
    assert await here.find(token_hash) is not None  # no time has passed for this process
    clock.now += 0.5
    assert await here.find(token_hash) is None
    await database.transact(delete_expired_sessions)
    assert await here.find(token_hash) is None
