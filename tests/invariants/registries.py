"""I4 beside the replay: what the index says of every job and provider is what the registries themselves say.

violations = await registry_violations(connection, rpc, address_book)
assert violations == []
"""

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from common import abi
from common.address_book import AddressBook
from coordinatord.chain.rpc import Reverted, Rpc, View, read_many

_AT_ONCE: Final = 200
# Columns in the order of the words that the registry's view begins with.
_JOB: Final = ("known", "state", "ended_because", "provider_id", "claimed_at")
# An open job whose time is over is marked in the index, and open in the registry, which keeps no expiry.
_JOBS: Final = (
    "select job_id, true as known, case when ended_because = 5 then 0 else state end as state,"
    " case when ended_because = 5 then 0 else ended_because end as ended_because, provider_id, claimed_at"
    " from jobs order by job_id"
)
_PROVIDER: Final = (
    *("operator", "box_key", "listed", "allow_all_models", "reputation", "requested", "ceiling", "active_jobs"),
)


async def registry_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, book: AddressBook
) -> list[str]:
    """What is broken, in words; empty when all holds. The chain must stand still, and the index have reached it."""
    jobs = await connection.fetch(_JOBS)
    providers = await connection.fetch("select * from providers order by provider_id")
    job, provider = abi.selector("job(bytes32)"), abi.selector("provider(uint32)")
    return [
        *await _differing(
            rpc,
            [View(book.job_registry, abi.call(job, abi.bytes32(row["job_id"])), "job_read") for row in jobs],
            [(f"job {row['job_id'].hex()}", [row[name] for name in _JOB]) for row in jobs],
        ),
        *await _differing(
            rpc,
            [
                View(book.provider_registry, abi.call(provider, abi.uint(row["provider_id"])), "provider_id_read")
                for row in providers
            ],
            [(f"provider {row['provider_id']}", [row[name] for name in _PROVIDER]) for row in providers],
        ),
    ]


async def _differing(rpc: Rpc, views: Sequence[View], indexed: Sequence[tuple[str, Sequence[Any]]]) -> list[str]:
    found = []
    for start in range(0, len(views), _AT_ONCE):
        answers = await read_many(rpc, views[start : start + _AT_ONCE], "job_read")
        for (name, row), answer in zip(indexed[start : start + _AT_ONCE], answers, strict=True):
            told = (
                None
                if isinstance(answer, Reverted)
                else [int.from_bytes(answer[at : at + 32]) for at in range(0, len(answer), 32)][: len(row)]
            )
            if told != (ours := [_number(value) for value in row]):
                found.append(f"I4: {name} is {ours} in the index, and {told} in the registry")
    return found


def _number(value: Any) -> int:
    return int.from_bytes(value) if isinstance(value, bytes) else int(value or 0)
