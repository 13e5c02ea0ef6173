"""I8: a nonce creates at most one session, and no nonce or session outlives its limits."""

from typing import Final

import asyncpg

_TOO_MANY: Final = (
    "select 'I8: address ' || encode(address, 'hex') || ' holds ' || count(*) || ' sessions' from sessions"
    " where expires_at > clock_timestamp() group by address having count(*) > 32"
)
_TOO_LONG: Final = (
    "select 'I8: a session of ' || encode(address, 'hex') || ' lives until ' || expires_at from sessions"
    " where expires_at > clock_timestamp() + interval '24 hours'"
)
_NONCES: Final = (
    "select 'I8: address ' || encode(address, 'hex') || ' holds ' || count(*) || ' nonces' from nonces"
    " where expires_at > clock_timestamp() group by address having count(*) > 16"
)


async def session_violations(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    return [row[0] for query in (_TOO_MANY, _TOO_LONG, _NONCES) for row in await connection.fetch(query)]
