"""I4 without a replay: every indexed row matches the registries' own views, as far as a view exists.

violations = await registry_violations(connection, rpc, address_book)
assert violations == []
"""

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from common import abi
from common.address_book import AddressBook
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.views import Reverted, View, read_many

_VIEWS_PER_READ: Final = 200
# Columns in the order in which the registry's view returns them.
_JOB: Final = ("known", "state", "ended_because", "provider_id", "claimed_at")
# The index marks an expired open job. The registry does not store expiry and still calls the job open.
_JOBS: Final = (
    "select job_id, true as known, case when ended_because = 5 then 0 else state end as state,"
    " case when ended_because = 5 then 0 else ended_because end as ended_because, provider_id, claimed_at"
    " from jobs where posted_block >= $1 order by job_id"
)
_PROVIDER: Final = (
    *("operator", "box_key", "listed", "allow_all_models", "reputation", "requested", "ceiling", "active_jobs"),
)


async def registry_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, book: AddressBook, since_block: int = 0
) -> list[str]:
    """Return each violation as a sentence. The index must have reached the head, and no block may be mined during the
    call. Jobs posted before `since_block` are not compared."""
    jobs = await connection.fetch(_JOBS, since_block)
    providers = await connection.fetch("select * from providers order by provider_id")
    job, provider = abi.selector("job(bytes32)"), abi.selector("provider(uint32)")
    return [
        *await _rows_differing(connection, rpc, book),
        *await _differing(
            rpc,
            [View(book.job_registry, abi.call_data(job, abi.bytes32(row["job_id"])), "job_read") for row in jobs],
            [(f"job {row['job_id'].hex()}", [row[name] for name in _JOB]) for row in jobs],
        ),
        *await _differing(
            rpc,
            [
                View(book.provider_registry, abi.call_data(provider, abi.uint(row["provider_id"])), "provider_id_read")
                for row in providers
            ],
            [(f"provider {row['provider_id']}", [row[name] for name in _PROVIDER]) for row in providers],
        ),
    ]


# By kind of row: the registry, its view of one row, the types of the view's arguments, and the rows (arguments first,
# then the expected result). The registry has no view of rejected models or prices.
_VIEWS: Final = {
    "model": ("job_registry", "modelEnabled(uint32)", 1, "select model_id, enabled from models"),
    "window": ("job_registry", "slaAllowed(uint32)", 1, "select sla_secs, allowed from slas"),
    "fees": ("job_registry", "fees()", 0, "select fee_bps, gas_fee from fees"),
    "entry": ("provider_registry", "allowlistStatus(bytes32)", 1, "select key, status from allowlist"),
    "provider's model": (
        *("provider_registry", "modelAllowed(uint32,uint32)", 2),
        "select provider_id, model_id, true from provider_models join providers using (provider_id)",
    ),
    "time of asks": ("ask_registry", "latestSignedAt(uint32)", 1, "select provider_id, signed_at from ask_times"),
}


async def _rows_differing(connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, book: AddressBook) -> list[str]:
    found = []
    for name, (registry, view, arguments, query) in _VIEWS.items():
        rows = [tuple(row) for row in await connection.fetch(query)]
        views = [
            View(getattr(book, registry), abi.call_data(abi.selector(view), *map(_word, row[:arguments])), "view_read")
            for row in rows
        ]
        named = [
            " ".join([name, *(a.hex() if isinstance(a, bytes) else str(a) for a in row[:arguments])]) for row in rows
        ]
        told = [row[arguments:] for row in rows]
        found += await _differing(rpc, views, list(zip(named, told, strict=True)))
    return found


def _word(value: Any) -> abi.Words:
    return abi.bytes32(value) if isinstance(value, bytes) else abi.uint(value)


async def _differing(rpc: Rpc, views: Sequence[View], indexed: Sequence[tuple[str, Sequence[Any]]]) -> list[str]:
    found = []
    for start in range(0, len(views), _VIEWS_PER_READ):
        answers = await read_many(rpc, views[start : start + _VIEWS_PER_READ], "job_read")
        for (name, row), answer in zip(indexed[start : start + _VIEWS_PER_READ], answers, strict=True):
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
