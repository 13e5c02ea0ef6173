"""An index that stands where a test puts it."""

import attrs

from coordinatord.storage.database.snapshot_sql import Snapshot


@attrs.define
class Standing:
    """`known`: what is known of it without a question; None when too much time has passed."""

    now: Snapshot
    known: Snapshot | None = None

    def recent(self) -> Snapshot | None:
        return self.known

    async def get(self) -> Snapshot:
        return self.now

    def forget(self) -> None:
        self.known = None
