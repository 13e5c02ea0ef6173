"""Queries on nonces and sessions. Both expire by the database's clock, because all processes share that clock."""

from datetime import timedelta
from typing import Final

import attrs

from common.api import limits
from coordinatord.base.outcomes import SessionRow
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.removal_sql import remove_due

NONCE_LIFETIME: Final = timedelta(seconds=limits.NONCE_LIFETIME_S)
SESSION_LIFETIME: Final = timedelta(seconds=limits.SESSION_LIFETIME_S)
MAX_NONCES: Final = limits.MAX_NONCES_PER_ADDRESS
MAX_SESSIONS: Final = limits.MAX_SESSIONS_PER_ADDRESS
_EXPIRES_AT_S: Final = "floor(extract(epoch from expires_at))::bigint"


async def add_nonce(connection: Connection, nonce: str, address: bytes, caller: str) -> int:
    """Store a nonce, within a transaction. Return its expiry.

    Beyond the cap on nonces of an address, delete the oldest nonce of the caller that has most of them. On a tie, the
    requesting caller loses a nonce. So a stranger's requests displace only the stranger's nonces.
    """
    await _lock_address(connection, address)
    await connection.execute("delete from nonces where address = $1 and expires_at <= clock_timestamp()", address)
    expires_at: int = await connection.fetchval(
        "insert into nonces (nonce, address, caller, expires_at) values ($1, $2, $3, clock_timestamp() + $4)"
        f" on conflict (nonce) do update set expires_at = excluded.expires_at returning {_EXPIRES_AT_S}",
        nonce,
        address,
        caller,
        NONCE_LIFETIME,
    )
    await connection.execute(
        "delete from nonces where nonce in (select nonce from ("
        " select nonce, issued_at, caller, count(*) over (partition by caller) as holds, count(*) over () as live"
        " from nonces where address = $1) n"
        " where live > $2 and nonce <> $3 order by holds desc, caller = $4 desc, issued_at"
        " limit 1)",
        address,
        MAX_NONCES,
        nonce,
        caller,
    )
    return expires_at


async def read_nonce_address(connection: Connection, nonce: str) -> bytes | None:
    """Return the address that a live nonce was issued to."""
    address: bytes | None = await connection.fetchval(
        "select address from nonces where nonce = $1 and expires_at > clock_timestamp()", nonce
    )
    return address


async def open_session(
    connection: Connection, nonce: str, token_hash: bytes, address: bytes, provider_id: int | None
) -> int | None:
    """Use up the nonce and open the session, within a transaction. Return the expiry, or None if the nonce is gone.

    The delete succeeds for only one of two requests with the same nonce. A transaction that is repeated because its
    commit was uncertain finds the session that the first attempt opened.
    """
    used = await connection.fetchval(
        "delete from nonces where nonce = $1 and address = $2 and expires_at > clock_timestamp() returning true",
        nonce,
        address,
    )
    if used is None:
        opened: int | None = await connection.fetchval(
            f"select {_EXPIRES_AT_S} from sessions where token_hash = $1", token_hash
        )
        return opened
    await _lock_address(connection, address)
    await connection.execute("delete from sessions where address = $1 and expires_at <= clock_timestamp()", address)
    expires_at: int = await connection.fetchval(
        "insert into sessions (token_hash, address, provider_id, expires_at)"
        f" values ($1, $2, $3, clock_timestamp() + $4) returning {_EXPIRES_AT_S}",
        token_hash,
        address,
        provider_id,
        SESSION_LIFETIME,
    )
    await connection.execute(
        "delete from sessions where token_hash in (select token_hash from sessions where address = $1"
        " order by expires_at desc, token_hash offset $2)",
        address,
        MAX_SESSIONS,
    )
    return expires_at


@attrs.frozen(slots=True)
class LiveSession:
    row: SessionRow
    seconds_left: float


_SELECT_REVOCATIONS: Final = "select times from sessions_taken_back"
_SELECT_LIVE_SESSIONS: Final = (
    "select t.times, s.token_hash, s.address, s.provider_id,"
    " extract(epoch from s.expires_at - clock_timestamp())::float8 as seconds_left"
    " from sessions_taken_back t left join sessions s on s.token_hash = any($1) and s.expires_at > clock_timestamp()"
)


async def read_sessions(
    connection: PreparedConnection, token_hashes: list[bytes]
) -> tuple[int, dict[bytes, LiveSession]]:
    """Return the count of revocations, and the live sessions of these tokens."""
    rows = await connection.fetch(_SELECT_LIVE_SESSIONS, token_hashes)
    return rows[0]["times"], {
        row["token_hash"]: LiveSession(SessionRow(row["address"], row["provider_id"]), row["seconds_left"])
        for row in rows
        if row["token_hash"] is not None
    }


async def read_revocations(connection: PreparedConnection) -> int:
    times: int = (await connection.fetch(_SELECT_REVOCATIONS))[0]["times"]
    return times


async def delete_expired_sessions(connection: Connection) -> None:
    for table in ("nonces", "sessions"):
        await remove_due(connection, table, "expires_at <= statement_timestamp()")


async def _lock_address(connection: Connection, address: bytes) -> None:
    """Serialise requests for one address, so that each request sees the rows that earlier requests added."""
    await connection.execute("select pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), 0))", address)
