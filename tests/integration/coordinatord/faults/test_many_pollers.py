"""Thousands of providers poll one coordinator over separate connections while other clients work. `POLLERS=10000`
runs ten thousand. `make test` runs as many as leave room for the other tests.

Promises: every poll is answered 200, no connection is lost, no job goes to two providers (I9), submissions and reads
succeed, posted jobs reach a poller, and memory is bounded by the number of pollers.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from subprocess import PIPE

import anyio
import asyncpg
import pytest

from coordinatord.api.sessions.sessions import hash_token
from devnet.ports import LOOPBACK
from tests.integration.coordinatord.faults.load import submissions
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.support.faults.polling_crowd import token

POLLERS, JOBS = int(os.environ.get("POLLERS", "2000")), 12
PAUSE = POLLERS / 500  # seconds between a provider's polls: five hundred per second in total
MEMORY_OF_ONE = 64 * 1024  # bytes of the coordinator's memory per poller and connection
_BESIDES = 1000  # descriptors for other uses
FIRST = 1_000_000  # lowest provider id of the crowd, far from those of the chain


@pytest.fixture
def _enough_descriptors() -> Iterator[None]:
    """Raise the limit for this process and the two that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = POLLERS + _BESIDES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} open files are needed, and {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _sign_in(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Insert sessions as if each poller had registered and signed in."""
    await connection.execute(
        "insert into providers (provider_id, operator, box_key, listed, allow_all_models, reputation, requested,"
        " ceiling) select $1 + n, sha256(n::text::bytea), '\\x02', true, true, 1000, 1000, 1000"
        " from generate_series(0, $2::bigint - 1) as n",
        FIRST,
        POLLERS,
    )
    until = datetime.now(UTC) + timedelta(hours=1)
    await connection.copy_records_to_table(
        "sessions",
        records=[(hash_token(token(n)), b"\x01", FIRST + n, until) for n in range(POLLERS)],
        columns=("token_hash", "address", "provider_id", "expires_at"),
    )


async def _until_all_leased(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    with anyio.fail_after(120):
        while await connection.fetchval("select count(*) from leases") < JOBS:  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.2)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_enough_descriptors")
async def test_thousands_of_pollers_do_not_block_others(setup: MarketSetup) -> None:
    reads: list[int] = []
    settings = {"MATCH_LEASE_MS": 600_000, "connections": POLLERS + _BESIDES}
    async with AsyncExitStack() as stack, setup.running_coordinator(timeout_s=60, **settings) as (coordinator, http):
        crowd = [sys.executable, "-m", "tests.support.faults.polling_crowd", LOOPBACK, str(coordinator.port)]
        crowd += [str(POLLERS), "/evm/jobs?state=Open&model=1&free=1", str(PAUSE)]
        connection = await asyncpg.connect(setup.database_url)
        stack.push_async_callback(connection.close)
        await _sign_in(connection)
        bodies = await submissions(setup.party(http), JOBS)
        alone = coordinator.resident_bytes()

        async def read() -> None:
            while True:
                for path in ("/readyz", "/evm/jobs?limit=5"):
                    reads.append((await http.get(path)).status_code)

        async with (
            await anyio.open_process(crowd, stdin=PIPE, stdout=PIPE, stderr=None) as pollers,
            anyio.create_task_group() as others,
        ):
            assert pollers.stdin is not None
            assert pollers.stdout is not None
            others.start_soon(read)
            with anyio.fail_after(300):
                assert await pollers.stdout.receive() == b"polling\n"
            posted = [(await http.post("/v1/jobs", json=body)).status_code for body in bodies]
            await _until_all_leased(connection)
            crowded = coordinator.resident_bytes()
            await pollers.stdin.aclose()
            told = json.loads(b"".join([piece async for piece in pollers.stdout]))
            others.cancel_scope.cancel()
    assert (set(told["statuses"]), told["lost"]) == ({"200"}, 0)
    assert told["statuses"]["200"] >= 2 * POLLERS
    assert {job: len(holders) for job, holders in told["holders"].items()} == dict.fromkeys(
        (body["job_id"] for body in bodies), 1
    )
    assert (set(posted), set(reads)) == ({201}, {200})
    assert crowded - alone < POLLERS * MEMORY_OF_ONE
