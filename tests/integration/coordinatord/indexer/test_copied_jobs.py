"""Read back copied job rows: every column, with extreme numbers."""

import asyncpg
import pytest
from msgspec.structs import asdict, replace

from coordinatord.chain.indexer.changes import NewJob
from coordinatord.chain.indexer.tables_sql import write_new_jobs

pytestmark = pytest.mark.anyio

AMOUNTS = (0, 1, 9_999, 10_000, 10_001, 99_990_000, 10**12, 10**16 + 1, 2**64, 2**127, 2**128 - 1)
POSTED = NewJob(
    b"", b"\2" * 20, b"\3" * 32, 5, 60, 1, 2, 3, 2**32 - 1, 7, 2**63 - 1, 7, 65_535, 8, "bafk", b"\4" * 65, 11, 12
)


def numbered(jobs: list[NewJob]) -> list[NewJob]:
    return [replace(job, job_id=bytes([number]) * 32) for number, job in enumerate(jobs)]


async def test_jobs_are_read_back_as_they_were_written(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    jobs = numbered(
        [
            *(replace(POSTED, rate_in=a, rate_out=a, cap=a, gas_fee=a) for a in AMOUNTS),
            replace(POSTED, task_cid="tab\there, back\\slash, line\nand é", pay_sig=b""),
            replace(POSTED, state=1, provider_id=9, claimed_at=10),
            *(
                replace(POSTED, state=2, ended_because=1, provider_id=9, claimed_at=10, completion_tok=4, cost=a,
                        result_cid="\ufffd", ended_at=13)
                for a in AMOUNTS
            ),
        ]
    )  # fmt: skip
    await write_new_jobs(connection, jobs, 5)
    rows = await connection.fetch("select * from jobs order by ordinal")
    assert [{name: row[name] for name in asdict(job)} for row, job in zip(rows, jobs, strict=True)] == [
        asdict(job) for job in jobs
    ]
    assert [row["ordinal"] for row in rows] == [*range(5, 5 + len(jobs))]
