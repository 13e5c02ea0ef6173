"""Find jobs, owners and providers by the beginning of an id, with bounded index scans."""

from typing import Final, Literal

import attrs

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import ARE_JOBS_COUNTED, SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

MAX_MATCHES: Final = 8  # of each kind
_JOB_ID_BYTES: Final = 32
_ADDRESS_BYTES: Final = 20
_EMPTY_RANGE: Final = (b"\x01", b"\x00")

# The recursion finds each owner by one index probe instead of a scan, because an owner may have millions of jobs. The
# probes use `order by … limit 1`, because PostgreSQL before 18 has no min(bytea).
_FIND_MATCHES: Final = f"""
with recursive owners as (
    select (select j.owner from jobs j where j.owner between $3 and $4 order by j.owner limit 1) as owner, 1 as number
    union all
    select (select j.owner from jobs j where j.owner > o.owner and j.owner <= $4 order by j.owner limit 1), o.number + 1
    from owners o where o.owner is not null and o.number <= {MAX_MATCHES}),
found as (
    (select 'job' as kind, job_id as id from jobs where job_id between $1 and $2 order by job_id
        limit {MAX_MATCHES + 1})
    union all
    select 'owner', owner from owners where owner is not null
    union all
    (select 'provider', int8send(provider_id) from providers where operator between $3 and $4 order by provider_id
        limit {MAX_MATCHES + 1}))
select f.kind, f.id, {ARE_JOBS_COUNTED} as counted, {SNAPSHOT_COLUMNS} from index_position p left join found f on true
"""


@attrs.frozen(slots=True)
class Match:
    """Search result. `id` is the id of a job, the address of an owner, or the number of a provider in eight bytes."""

    kind: Literal["job", "owner", "provider"]
    id: bytes


@attrs.frozen(slots=True)
class SearchResult:
    matches: tuple[Match, ...]
    has_more: bool  # True if there are more than MAX_MATCHES of some kind


async def find_matches(database: Database, prefix: str) -> tuple[Snapshot, SearchResult]:
    """Return ids that begin with these hex digits. Raise Retryable until the first backfill has built the indexes."""
    ranges = (*prefix_range(prefix, _JOB_ID_BYTES), *prefix_range(prefix, _ADDRESS_BYTES))
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(_FIND_MATCHES, *ranges)
    snapshot = snapshot_from_rows(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has not counted its jobs yet; try again")
    by_kind: dict[str, list[Match]] = {"job": [], "owner": [], "provider": []}
    for row in rows:
        if row["kind"] is not None:
            by_kind[row["kind"]].append(Match(row["kind"], row["id"]))
    kept = tuple(match for matches in by_kind.values() for match in matches[:MAX_MATCHES])
    return snapshot, SearchResult(kept, any(len(matches) > MAX_MATCHES for matches in by_kind.values()))


def prefix_range(prefix: str, size: int) -> tuple[bytes, bytes]:
    """Return the first and the last value of `size` bytes that begin with these hex digits.

    >>> prefix_range("abc", 2)
    (b'\\xab\\xc0', b'\\xab\\xcf')
    """
    digits = 2 * size
    if len(prefix) > digits:
        return _EMPTY_RANGE
    return bytes.fromhex(prefix.ljust(digits, "0")), bytes.fromhex(prefix.ljust(digits, "f"))
