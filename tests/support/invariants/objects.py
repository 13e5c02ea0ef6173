"""I7: every content id in use can be fetched, and the fetched bytes hash to the same id.

violations = await object_violations(connection, gateway)
assert violations == []
"""

import hashlib
from datetime import UTC, datetime
from typing import Final

import asyncpg
import httpx

from common.cid import cid_of

LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)
# Objects of jobs, and uploads, each with its stored digest if one was recorded.
_OBJECTS: Final = (
    "select 'object ' || key as name, cid, sha256 from objects"
    " where attached and cid is not null and removing_until is null and expires_at > clock_timestamp()"
    " and created_at >= $1"
)
_FILES: Final = (
    "select 'file ' || id as name, cid, null::bytea as sha256 from files"
    " where cid is not null and removing_until is null and expires_at > clock_timestamp() + interval '10 seconds'"
    " and created_at >= $1"
)
_JOBS: Final = (
    "select 'job ' || encode(job_id, 'hex') as name, cid, null::bytea as sha256 from jobs"
    " cross join lateral (values (task_cid), (result_cid)) as named (cid) where cid <> '' and posted_block >= $1"
)


async def object_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", gateway: str, *, since: datetime = LONG_AGO, since_block: int = 0
) -> list[str]:
    """Return each violation as a sentence. Reads every object that was stored since this time, and of jobs posted since
    this block, so they must be few. The store must split files like the local one."""
    found, seen = [], dict[str, tuple[bytes, str] | None]()  # by id: digest and id of the fetched bytes
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for query, first in ((_OBJECTS, since), (_FILES, since), (_JOBS, since_block)):
            for row in await connection.fetch(query, first):
                cid = row["cid"]
                if cid not in seen:
                    answer = await client.get(f"{gateway}/ipfs/{cid}")
                    seen[cid] = _identity(answer.content) if answer.is_success else None
                if (came := seen[cid]) is None:
                    found.append(f"I7: {row['name']} refers to {cid}, which cannot be fetched")
                elif came[1] != cid:
                    found.append(f"I7: {row['name']} refers to {cid}, but the gateway returns {came[1]}")
                elif row["sha256"] not in (None, came[0]):
                    found.append(f"I7: {row['name']} is not what was stored under {cid}")
    return found


def _identity(content: bytes) -> tuple[bytes, str]:
    return hashlib.sha256(content).digest(), str(cid_of(content))
