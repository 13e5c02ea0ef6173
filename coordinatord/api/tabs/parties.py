"""Access to tabs: only the sessions of a job's owner and of its provider may post and read frames."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from common.api.events import EventKind
from common.api.states import JobState
from coordinatord.api.events.events_sql import LoggedEvent
from coordinatord.api.tabs.tabs_sql import TabParties, read_parties
from coordinatord.base.outcomes import SessionRow
from coordinatord.storage.database.connections import Database

CACHE_LIFETIME_S: Final = 10.0  # lifetime of cached parties; an event of the job removes them earlier
MAX_CACHED_TABS: Final = 65_536

PartyRefusal: TypeAlias = Literal["unknown_job", "not_claimed", "not_party"]


@attrs.frozen(slots=True)
class _CachedParties:
    parties: TabParties
    valid_until: float


class PartyReads:
    """Reads the parties of jobs. Caches the parties of a claimed job for CACHE_LIFETIME_S, or until the job's next
    event, so that most posts of frames cost no read."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = database.prepared_connection()
        self._clock = clock
        self._cache: dict[bytes, _CachedParties] = {}
        self._changes = 0

    async def read_parties(self, job_ids: Collection[bytes]) -> dict[bytes, TabParties | None]:
        """Return the parties of every job, or None for a job that is not in the index."""
        now, changes = self._clock(), self._changes
        found: dict[bytes, TabParties | None] = {}
        for job_id in job_ids:
            known = self._cache.get(job_id)
            if known is not None and now < known.valid_until:
                found[job_id] = known.parties
        if missing := [job_id for job_id in job_ids if job_id not in found]:
            read = await read_parties(self._connection, missing)
            found |= read
            if self._changes == changes:  # otherwise the parties may have changed since the read
                self._cache_parties(read, now + CACHE_LIFETIME_S)
        return found

    def invalidate(self, events: Sequence[LoggedEvent]) -> None:
        """Drop the cached parties of jobs with new events."""
        self._changes += 1
        if any(event.kind is EventKind.RESET for event in events):
            self._cache.clear()
        for event in events:
            self._cache.pop(event.job_id, None)

    def _cache_parties(self, read: Mapping[bytes, TabParties | None], until: float) -> None:
        if len(self._cache) + len(read) > MAX_CACHED_TABS:
            self._cache.clear()
        for job_id, parties in read.items():
            if parties is not None and parties.state == JobState.CLAIMED:
                self._cache[job_id] = _CachedParties(parties, until)


def is_owner_side(session: SessionRow) -> bool:
    """Return True for a session on the owner's side of its tabs, False for a provider's session."""
    return session.provider_id is None


def party_refusal(parties: TabParties | None, session: SessionRow) -> PartyRefusal | None:
    """Return why the session may not use the tab of this job now, or None."""
    if parties is None:
        return "unknown_job"
    if is_owner_side(session):
        is_party = session.address == parties.owner
    else:
        is_party = session.provider_id == (parties.provider_id or parties.designated)
    if not is_party:
        return "not_party"
    return None if parties.state == JobState.CLAIMED else "not_claimed"
