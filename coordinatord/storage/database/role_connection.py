"""Share the connection that holds a role's lock, between tasks that use it in turn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.transactions import transaction


def relayer_role_name(chain_id: int, account: bytes) -> str:
    """Return the name of the role whose holder relays from this account."""
    return f"relayer:{chain_id}:0x{account.hex()}"


class RoleConnection:
    """Connection for all writes of a relayer account. A process that lost the lock has lost this connection too."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self._turn = anyio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._turn, transaction(self._connection):
            yield self._connection
