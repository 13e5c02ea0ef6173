"""The write-ahead oracle (I10): when a node gets signed bytes, a relayer's outbox has already committed them.

Before `rpc_proxy` passes a broadcast on, the oracle queries PostgreSQL over a separate connection, which does not see
uncommitted rows. If a relayer stored the bytes only after the broadcast, a crash in between would lose them, and an
unknown transaction would use the nonce.
"""

from collections.abc import Mapping, Sequence

import anyio
import asyncpg
import attrs

from common.inclusion import rlp
from common.keccak import keccak256

_STORED = "select hash from relay_tx_versions where hash = any($1::bytea[])"
_MAX_STORED = 10_000
_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@attrs.define(eq=False)
class WriteAhead:
    """`broadcasts` counts the checked transactions. `violations` names each that was not stored."""

    database_url: str
    broadcasts: int = 0
    violations: list[str] = attrs.field(factory=list)
    _stored: dict[bytes, None] = attrs.field(factory=dict)  # the newest, in the order of their broadcasts
    _unasked: dict[bytes, bytes] = attrs.field(factory=dict)  # by hash, sent while the database was down
    _connection: "asyncpg.Connection[asyncpg.Record] | None" = None
    _turn: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def before_broadcast(self, raws: Sequence[bytes]) -> None:
        """Await this with the bytes of a request before the node gets any of them. While the database is unreachable
        the bytes pass, and `found` checks them at the end. If a failover lost them, the relayer finds them in the
        blocks."""
        fresh = {tx_hash: raw for raw in raws if (tx_hash := keccak256(raw)) not in self._stored}
        async with self._turn:
            self.broadcasts += len(raws)
            if fresh and not await self._ask(fresh):
                self._unasked |= fresh

    async def found(self) -> list[str]:
        """Return a description of each violation at the end, and close the connection to the database."""
        async with self._turn:
            if self._unasked and not await self._ask(self._unasked):
                unasked = f"I10: {len(self._unasked)} transactions could not be looked up: the database is unreachable"
                return [*self.violations, unasked]
            self._unasked = {}
            await self.aclose()
        return list(self.violations)

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close(timeout=1)

    async def _ask(self, sent: Mapping[bytes, bytes]) -> bool:
        """Look up bytes by hash. Return False while the database is unreachable."""
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self.database_url, timeout=5)
            rows = await self._connection.fetch(_STORED, list(sent))
        except _AWAY:
            return False
        stored = {row["hash"] for row in rows}
        self.violations += [_unstored(h, raw) for h, raw in sent.items() if h not in stored]
        self._stored |= dict.fromkeys(sent)  # report each only once
        while len(self._stored) > _MAX_STORED:
            del self._stored[next(iter(self._stored))]
        return True


def _unstored(tx_hash: bytes, raw: bytes) -> str:
    nonce = rlp.decode_list(raw[1:])[1]  # of an EIP-1559 transaction: type ‖ [chain, nonce, …]
    assert isinstance(nonce, bytes)
    return (
        f"I10: transaction 0x{tx_hash.hex()} (nonce {int.from_bytes(nonce, 'big')}) was broadcast"
        " before its bytes were committed"
    )
