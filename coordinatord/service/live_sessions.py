"""Whose token it is: sessions that were read stay known, until they end or any session is taken back.

The database counts how often sessions were taken back (evicted, dropped, changed by hand), so that what one process
knows is right whichever process or person did it; that count is what is asked for, and once for all requests of a
moment.
"""

import time
from collections.abc import Callable
from typing import Final

import attrs

from coordinatord.service.point_reads import PointReads
from coordinatord.service.recent import Recent
from coordinatord.store import sessions
from coordinatord.store.database import Database
from coordinatord.store.lines import Line
from coordinatord.store.sessions import SessionRow

_NOTICED: Final = 0.05  # seconds until what another process takes back is known here
_MOST: Final = 65_536
# The database's clock decides when a session ends, and that clock may be set: it is asked again before long.
_LONGEST: Final = 60.0  # seconds


@attrs.frozen(slots=True)
class _Known:
    row: SessionRow
    taken_back: int
    until: float


class LiveSessions:
    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._reads = PointReads[bytes, SessionRow | None](database.line(), self._read)
        self._taken_back = Recent(database.line(), sessions.read_taken_back, clock)
        self._clock = clock
        self._known: dict[bytes, _Known] = {}

    async def find(self, token_hash: bytes) -> SessionRow | None:
        known = self._known.get(token_hash)
        if known is None or self._clock() >= known.until:
            return await self._reads.get(token_hash)
        if known.taken_back != await self._taken_back.lately(_NOTICED):
            return await self._reads.get(token_hash)
        return known.row

    async def opened(self) -> None:
        """A session was opened here, maybe in place of another: that one is not found here any more."""
        await self._taken_back.get()

    async def _read(self, line: Line, hashes: list[bytes]) -> dict[bytes, SessionRow | None]:
        asked_at = self._clock()
        taken_back, live = await sessions.read_sessions(line, hashes)
        if len(self._known) + len(live) > _MOST:
            self._known.clear()
        found: dict[bytes, SessionRow | None] = dict.fromkeys(hashes)
        for token_hash, session in live.items():
            found[token_hash] = session.row
            until = asked_at + min(session.seconds_left, _LONGEST)
            self._known[token_hash] = _Known(session.row, taken_back, until)
        return found
