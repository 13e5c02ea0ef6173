"""An index at a position that the test chooses."""

import attrs

from coordinatord.storage.database.snapshot_sql import Snapshot


@attrs.define
class Standing:
    """`known`: the last known position, or None when it is too old to use without a query."""

    now: Snapshot
    known: Snapshot | None = None

    def recent_value(self) -> Snapshot | None:
        return self.known

    async def get(self) -> Snapshot:
        return self.now

    def invalidate(self) -> None:
        self.known = None
