"""Budgets of stored bytes, per owner and for newcomers."""

import math
import time
from typing import Final

import attrs

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.pins.objects_sql import stored_for, stored_for_newcomers

_ROWS: Final = 5_000_000
_NEW_ROWS: Final = 100_000
_NEWCOMERS_ROWS: Final = 1_000_000
_NEW_SHARE: Final = 64
_NEWCOMERS_INTERVAL_S: Final = 1.0
# Minimum pause, as a multiple of the duration of the last read.
_NEWCOMERS_PAUSE_FACTOR: Final = 20.0
# An unused upload lives as long as this.
_RETRY_AFTER_S: Final = 300


@attrs.define(slots=True)
class _Newcomers:
    """Sums of all newcomers. They are read at most once a second and only a small share of the time, because a read
    visits a row of every newcomer."""

    _next_look: float = -math.inf
    _sums: tuple[int, int] = (0, 0)

    async def sums(self, connection: Connection) -> tuple[int, int]:
        began = time.monotonic()
        if began >= self._next_look:
            self._sums = await stored_for_newcomers(connection)
            took = time.monotonic() - began
            self._next_look = began + max(_NEWCOMERS_INTERVAL_S, _NEWCOMERS_PAUSE_FACTOR * took)
        return self._sums


@attrs.frozen(slots=True, kw_only=True)
class StorageBudgets:
    """Limits on the bytes and rows stored for one owner, checked in the transaction that adds to them. 0 means no
    limit.

    An owner without a settled job has a small allowance (`new_`), and an owner with one a large allowance (`earned_`).
    Wallets are free to create, so all owners without a settled job also share a ceiling (`newcomers_`). Results of
    settles and output files of batches count but are never refused: a settle frees a client's money.
    """

    new_bytes: int
    new_rows: int
    earned_bytes: int
    earned_rows: int
    newcomers_bytes: int = 0
    newcomers_rows: int = 0
    _newcomers: _Newcomers = attrs.field(factory=_Newcomers, init=False, eq=False, repr=False)

    @classmethod
    def of(cls, earned_bytes: int, newcomers_bytes: int) -> "StorageBudgets":
        """Return the budgets for a setting of each kind. A newcomer may use one part in 64 of what all share."""
        return cls(
            new_bytes=newcomers_bytes // _NEW_SHARE,
            new_rows=_NEW_ROWS if newcomers_bytes else 0,
            earned_bytes=earned_bytes,
            earned_rows=_ROWS if earned_bytes else 0,
            newcomers_bytes=newcomers_bytes,
            newcomers_rows=_NEWCOMERS_ROWS if newcomers_bytes else 0,
        )

    async def check(self, connection: Connection, owner: bytes) -> None:
        """Check the owner's allowance after a row of the owner was added and before the commit.

        Raise Retryable `busy` when the owner's content exceeds its allowance, or the content of all newcomers exceeds
        theirs.
        """
        held = await stored_for(connection, owner)
        max_bytes, max_rows = (self.earned_bytes, self.earned_rows) if held.earned else (self.new_bytes, self.new_rows)
        more = "" if held.earned else ", or grows with your first settled job"
        if max_bytes and held.bytes > max_bytes:
            raise _full(f"at most {max_bytes} bytes are kept for one wallet; room comes as files expire{more}")
        if max_rows and held.rows > max_rows:
            raise _full(f"at most {max_rows} files and lines are kept for one wallet; room comes as they expire{more}")
        if not held.earned and (self.newcomers_bytes or self.newcomers_rows):
            all_bytes, all_rows = await self._newcomers.sums(connection)
            over_bytes = self.newcomers_bytes and all_bytes > self.newcomers_bytes
            if over_bytes or (self.newcomers_rows and all_rows > self.newcomers_rows):
                raise _full(
                    "the storage that wallets without a settled job share is full; retry after stored content expires"
                )


UNLIMITED: Final = StorageBudgets(new_bytes=0, new_rows=0, earned_bytes=0, earned_rows=0)


def _full(message: str) -> Retryable:
    metrics.budget_refusals.labels("storage").inc()
    return Retryable("busy", message, retry_after=_RETRY_AFTER_S)
