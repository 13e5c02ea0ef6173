"""Limit the stored bytes and rows of each owner, and of all newcomers together."""

import math
import time
from typing import Final

import attrs

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.pins.objects_sql import read_newcomer_sums, read_stored_sums

_MAX_ROWS_OF_EARNER: Final = 5_000_000
_MAX_ROWS_OF_NEWCOMER: Final = 100_000
_MAX_ROWS_OF_ALL_NEWCOMERS: Final = 1_000_000
_NEWCOMER_BYTES_DIVISOR: Final = 64
_SUMS_REFRESH_INTERVAL_S: Final = 1.0
# Minimum time between two reads of the sums, as a multiple of the duration of the last read.
_SUMS_READ_PAUSE_FACTOR: Final = 20.0
# Retry-After of a `busy` error. An unused upload expires within this time, and its space is then free.
_RETRY_AFTER_S: Final = 300


@attrs.define(slots=True)
class _NewcomerSums:
    """Cached sums of all newcomers. A read visits a row of every newcomer, so the sums are read at most once a second,
    and more rarely if reads are slow."""

    _next_read_at: float = -math.inf
    _sums: tuple[int, int] = (0, 0)

    async def read_sums(self, connection: Connection) -> tuple[int, int]:
        began = time.monotonic()
        if began >= self._next_read_at:
            self._sums = await read_newcomer_sums(connection)
            took = time.monotonic() - began
            self._next_read_at = began + max(_SUMS_REFRESH_INTERVAL_S, _SUMS_READ_PAUSE_FACTOR * took)
        return self._sums


@attrs.frozen(slots=True, kw_only=True)
class StorageBudgets:
    """Limits on the bytes and rows stored for one owner, checked in the transaction that adds to them. 0 means no
    limit.

    An owner without a settled job has a small allowance, and an owner with a settled job has a large allowance. Wallets
    are free to create, so all owners without a settled job also share a ceiling. Results of settles and output files of
    batches count but are never refused: refusing a settle would keep the client's payment locked.
    """

    max_newcomer_bytes: int
    max_newcomer_rows: int
    max_earner_bytes: int
    max_earner_rows: int
    max_all_newcomers_bytes: int = 0
    max_all_newcomers_rows: int = 0
    _newcomers: _NewcomerSums = attrs.field(factory=_NewcomerSums, init=False, eq=False, repr=False)

    @classmethod
    def from_settings(cls, earned_bytes: int, newcomers_bytes: int) -> "StorageBudgets":
        """Return the budgets for the two settings. A single newcomer may use 1/64 of the bytes that all newcomers
        share."""
        return cls(
            max_newcomer_bytes=newcomers_bytes // _NEWCOMER_BYTES_DIVISOR,
            max_newcomer_rows=_MAX_ROWS_OF_NEWCOMER if newcomers_bytes else 0,
            max_earner_bytes=earned_bytes,
            max_earner_rows=_MAX_ROWS_OF_EARNER if earned_bytes else 0,
            max_all_newcomers_bytes=newcomers_bytes,
            max_all_newcomers_rows=_MAX_ROWS_OF_ALL_NEWCOMERS if newcomers_bytes else 0,
        )

    async def check(self, connection: Connection, owner: bytes) -> None:
        """Check the owner's allowance after a row of the owner was added and before the commit.

        Raise Retryable `busy` when the owner's content exceeds its allowance, or the content of all newcomers exceeds
        the newcomers' ceiling.
        """
        stored = await read_stored_sums(connection, owner)
        max_bytes, max_rows = (
            (self.max_earner_bytes, self.max_earner_rows)
            if stored.has_earned
            else (self.max_newcomer_bytes, self.max_newcomer_rows)
        )
        more = "" if stored.has_earned else ", or grows with your first settled job"
        if max_bytes and stored.bytes > max_bytes:
            raise _full_error(f"the wallet may store at most {max_bytes} bytes; space is freed as files expire{more}")
        if max_rows and stored.rows > max_rows:
            raise _full_error(
                f"the wallet may store at most {max_rows} files and batch lines; space is freed as they expire{more}"
            )
        if not stored.has_earned and (self.max_all_newcomers_bytes or self.max_all_newcomers_rows):
            all_bytes, all_rows = await self._newcomers.read_sums(connection)
            over_bytes = self.max_all_newcomers_bytes and all_bytes > self.max_all_newcomers_bytes
            if over_bytes or (self.max_all_newcomers_rows and all_rows > self.max_all_newcomers_rows):
                raise _full_error(
                    "the storage that wallets without a settled job share is full; retry after stored content expires"
                )


UNLIMITED: Final = StorageBudgets(max_newcomer_bytes=0, max_newcomer_rows=0, max_earner_bytes=0, max_earner_rows=0)


def _full_error(message: str) -> Retryable:
    metrics.budget_refusals.labels("storage").inc()
    return Retryable("busy", message, retry_after=_RETRY_AFTER_S)
