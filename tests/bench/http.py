"""HTTP through every layer of the coordinator, compared with a starlette hello under unmodified hypercorn.

All servers use uvloop and one process, and a client in a separate process keeps 16 connections busy. The index moves a
block before each portion of reads, and no portion reads a job twice, so no read is answered from a cache. Polls have a
session each, and request a model without jobs.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import asyncpg
from anyio.from_thread import start_blocking_portal

from coordinatord.api.sessions.sessions import hash_token
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.migration import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.http_load import IDS
from tests.bench.http_processes import load_client, server
from tests.bench.row import Row, interleaved
from tests.integration.coordinatord.book.market_rows import add_models, add_providers, begin_index

SECONDS: Final = 16
CONNECTIONS: Final = 16
MODELS, PROVIDERS = 16, 200
_JOBS: Final = (
    "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
    " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, ordinal)"
    " select sha256(n::text::bytea), '\\x01', sha256(n::text::bytea), 1, 3600, 1000000, 2000000, 1000, 1000, 0,"
    " 2000000000, 3000, 250, 2000, 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', '\\x02', n, 0, n - 1"
    " from generate_series(1, 20000) as n"
)
_NEXT_BLOCK: Final = "update index_position set block_number = block_number + 1, block_hash = sha256(block_hash)"


def rows() -> list[Row]:
    with ExitStack() as stack:
        url = stack.enter_context(filled_database())
        ask, next_block = stack.enter_context(load_client()), stack.enter_context(_blocks(url))
        ports = {name: pick_free() for name in ("hypercorn", "stack", "points", "polls")}
        for name, port in ports.items():
            stack.enter_context(server(name, port, {"DATABASE_URL": url}))
        poll = f"/evm/jobs?state=Open&model={MODELS}&free=4"
        points = ask([ports["points"]], "/v1/jobs/0x{id}", CONNECTIONS)

        def fresh_points() -> int:
            next_block()
            return points()

        rates = interleaved(
            {
                "hypercorn": ask([ports["hypercorn"]], "/", CONNECTIONS),
                "stack": ask([ports["stack"]], "/", CONNECTIONS),
                "points": fresh_points,
                "polls": ask([ports["polls"]], poll, CONNECTIONS, "svc_sess_{id}"),
            },
            SECONDS,
        )
    hello = "a starlette hello under hypercorn alone"
    return [
        rates.row("hello through all layers", "stack", "hypercorn", hello, target=3, unit="requests/s"),
        rates.row("job by id from PostgreSQL", "points", "hypercorn", hello, target=1.3, unit="requests/s"),
        rates.row("empty poll", "polls", "hypercorn", hello, target=0.8, unit="polls/s"),
    ]


@contextmanager
def filled_database() -> Iterator[str]:
    """Yield the database's URL. The id of job n is the sha256 of n."""
    with tempfile.TemporaryDirectory() as directory, start_blocking_portal("asyncio") as portal:
        folders = [Path(directory) / name for name in ("pg", "logs")]
        for folder in folders:
            folder.mkdir()
        with portal.wrap_async_context_manager(running_postgres(pick_free(), *folders)) as postgres:
            portal.call(_fill, postgres.url())
            yield postgres.url()


@contextmanager
def _blocks(url: str) -> Iterator[Callable[[], None]]:
    """Yield a function that moves the index to the next block."""
    with start_blocking_portal("asyncio") as portal:
        connection = portal.call(asyncpg.connect, url)
        yield lambda: portal.call(connection.execute, _NEXT_BLOCK) and None
        portal.call(connection.close)


async def _fill(url: str) -> None:
    async with open_database(url, max_size=1) as database, database.connection() as connection:
        await migrate(connection)
        await begin_index(connection)
        await add_models(connection, MODELS)
        await add_providers(connection, PROVIDERS)
        await connection.execute(_JOBS)
        tokens = ["svc_sess_" + hashlib.sha256(b"%d" % n).hexdigest() for n in range(1, IDS + 1)]
        await connection.executemany(
            "insert into sessions (token_hash, address, provider_id, expires_at)"
            " values ($1, '\\x01', $2, clock_timestamp() + interval '1 day')",
            [(hash_token(token), 1 + n % PROVIDERS) for n, token in enumerate(tokens)],
        )
        await connection.execute("analyze")
