"""Storage budgets: how many bytes and rows may be kept for one owner, asked in the transaction that adds to them.

An owner without a settled job has a small allowance, one that has earned it a large one. What a settle stores counts,
but is never refused: it frees a client's money. Files that batches yield are not refused either.
"""

from typing import Final, Self

import attrs

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.config import Config
from coordinatord.database.connections import Connection
from coordinatord.files.sql import stored_for

_RETRY_AFTER: Final = 300  # seconds: an upload that nothing came of lives as long


@attrs.frozen(slots=True, kw_only=True)
class StorageBudgets:
    """0 is no limit. The first two are for owners without a settled job."""

    new_bytes: int
    new_rows: int
    most_bytes: int
    most_rows: int

    @classmethod
    def of(cls, config: Config) -> Self:
        return cls(
            new_bytes=config.storage_new_bytes,
            new_rows=config.storage_new_rows,
            most_bytes=config.storage_bytes,
            most_rows=config.storage_rows,
        )

    async def check(self, connection: Connection, owner: bytes) -> None:
        """After a row of the owner's was added, before that is committed. Raises Retryable `busy` when all of its
        content together is beyond its allowance."""
        held = await stored_for(connection, owner)
        most_bytes, most_rows = (self.most_bytes, self.most_rows) if held.earned else (self.new_bytes, self.new_rows)
        more = "" if held.earned else ", or grows with your first settled job"
        if most_bytes and held.bytes > most_bytes:
            raise _full(f"at most {most_bytes} bytes are kept for one wallet; room comes as files expire{more}")
        if most_rows and held.rows > most_rows:
            raise _full(f"at most {most_rows} files and lines are kept for one wallet; room comes as they expire{more}")


UNLIMITED: Final = StorageBudgets(new_bytes=0, new_rows=0, most_bytes=0, most_rows=0)


def _full(message: str) -> Retryable:
    metrics.budget_refusals.labels("storage").inc()
    return Retryable("busy", message, retry_after=_RETRY_AFTER)
