"""Leases for polls, taken together: what a poll costs the database is its statements, and those that wait at the same
time share theirs."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from coordinatord.service.lookout import Lookout
from coordinatord.service.point_reads import PointReads
from coordinatord.store import leases
from coordinatord.store.database import Connection, Database
from coordinatord.store.jobs import JobFilter
from coordinatord.store.leases import START, Ask, HeldJob, Poller
from coordinatord.store.snapshot import Snapshot

Held: TypeAlias = tuple[Snapshot, list[HeldJob]]
Custody: TypeAlias = Callable[[Connection], Awaitable[int | None]]

# Calls of one process at a time: while one is answered, the next runs. More would only hold connections that others
# want; and whoever waits here waits for its turn, where in the pool it would be given up.
_AT_ONCE: Final = 2
_MOST_TOGETHER: Final = 64  # polls; those of other processes for the same providers wait until they are done
_PLAIN: Final = JobFilter()


class Wish(NamedTuple):
    """`filters`: what is asked of the jobs beyond being open and of the model."""

    poller: Poller
    free: int
    filters: JobFilter


class Leasing:
    def __init__(self, database: Database, lookout: Lookout, lease_ms: int, custody: Custody) -> None:
        self._database = database
        self._lookout = lookout
        self._lease_ms = lease_ms
        self._custody = custody
        self._plain = PointReads[Wish, Held](database, self._take, at_once=_AT_ONCE, most=_MOST_TOGETHER)
        # What one filter leaves aside is no other's business: these go one by one.
        self._filtered = PointReads[Wish, Held](database, self._take, at_once=_AT_ONCE, most=1)

    async def take(self, wish: Wish) -> Held:
        """Lease the provider as many jobs as are free and it may claim; all that it then holds, oldest first."""
        return await (self._plain if wish.filters == _PLAIN else self._filtered).get(wish)

    async def _take(self, database: Database, wishes: list[Wish]) -> dict[Wish, Held]:
        filters = wishes[0].filters
        free: dict[Poller, int] = defaultdict(int)
        for wish in wishes:  # of two polls of one provider, whatever the order, the one that asks for more decides
            free[wish.poller] = max(free[wish.poller], wish.free)
        heads = {poller.model_id: self._head(poller.model_id, filters) for poller in free}
        asks = [Ask(poller, slots, heads[poller.model_id]) for poller, slots in free.items()]

        async def body(connection: Connection) -> tuple[Snapshot, dict[Poller, list[HeldJob]]]:
            custody = await self._custody(connection)
            return await leases.poll(connection, asks, filters, lease_ms=self._lease_ms, custody=custody)

        snapshot, held = await database.transact(body)
        if filters == _PLAIN:
            for model_id in heads:
                taken = [job for poller, jobs in held.items() if poller.model_id == model_id for job in jobs]
                self._lookout.leased(model_id, taken)
        return {wish: (snapshot, held[wish.poller]) for wish in wishes}

    def _head(self, model_id: int, filters: JobFilter) -> leases.Place:
        return self._lookout.head(model_id) if filters == _PLAIN else START
