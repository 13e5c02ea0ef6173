"""Provider polls: those that lease compared with updates of four rows, and empty ones compared with a hello of
hypercorn alone.

100,000 open jobs of 16 models, 200 providers. Sixteen leasing polls run at a time, each for four jobs of one model,
from rotating providers. They take turns at the model's leases, while the updates of four rows by key, each in a
separate transaction, run on four connections. So the ratio is far below 1. Its minimum is several times the claims that
fit in the chain's gas. Leases last two seconds, so polls skip live ones and replace expired ones.

Empty polls go over HTTP, with a session each, for a model without jobs.
"""

import hashlib
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, cast

import anyio
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from coordinatord.api.book.funding import Funding
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.liveness import Liveness
from coordinatord.api.book.polls import Polls, checked_poll
from coordinatord.api.sessions.sessions import hash_token
from coordinatord.base.outcomes import NotSigned, SessionRow
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.snapshot_sql import Snapshot
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.http_load import IDS
from tests.bench.http_processes import load_client, server
from tests.bench.row import Row, interleaved
from tests.integration.coordinatord.book.market_rows import add_jobs, add_models, add_providers, begin_index

JOBS, MODELS, PROVIDERS = 100_000, 16, 200
CONNECTIONS: Final = 4
POLLERS: Final = 16  # concurrent polls, leasing or not
ROUNDS: Final = 5
PORTION: Final = 1_000
SLOW: Final = 800  # requests per portion, with unmodified hypercorn
LEASE_MS: Final = 2000


def rows() -> list[Row]:
    with ExitStack() as stack:
        portal, url = stack.enter_context(_filled_database())
        pool = open_database(url, smallest=CONNECTIONS, largest=CONNECTIONS)
        database = stack.enter_context(portal.wrap_async_context_manager(pool))
        polls = Polls(database, cast(Funding, _AllPaid()), lease_ms=LEASE_MS, liveness=Liveness(database, 15_000))
        leasing = _Leasing(database, polls)
        leased = interleaved(
            {
                "limit": lambda: portal.call(leasing.together, leasing.update_four, CONNECTIONS),
                "polls": lambda: portal.call(leasing.together, leasing.poll, POLLERS),
            },
            ROUNDS,
        )
        ask = stack.enter_context(load_client())
        ports = {name: pick_free() for name in ("hypercorn", "polls")}
        for name, port in ports.items():
            stack.enter_context(server(name, port, {"DATABASE_URL": url}))
        path = f"/evm/jobs?state=Open&model={MODELS}&free=4"
        empty = interleaved(
            {
                "limit": ask([ports["hypercorn"]], "/", POLLERS, portion=SLOW),
                "polls": ask([ports["polls"]], path, POLLERS, "svc_sess_{id}"),
            },
            ROUNDS,
        )
    return [
        leased.row(
            "poll that leases four jobs", "polls", "limit", "updates of four rows by key", target=0.06, unit="polls/s"
        ),
        empty.row(
            "poll that finds nothing, over HTTP",
            "polls",
            "limit",
            "a starlette hello under hypercorn alone",
            target=0.8,
            unit="polls/s",
        ),
    ]


@attrs.define
class _Leasing:
    database: Database
    polls: Polls
    _turns: "itertools.count[int]" = attrs.field(factory=itertools.count)

    async def together(self, once: Callable[[int], Awaitable[None]], at_once: int) -> int:
        """Run a portion with this many concurrent tasks."""
        left = iter(range(PORTION))

        async def some() -> None:
            for _ in left:
                await once(next(self._turns))

        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(some)
        return PORTION

    async def update_four(self, turn: int) -> None:
        first = turn * 4 % JOBS

        async def body(connection: Connection) -> None:
            await connection.execute("update bare set n = n + 1 where id = any($1)", list(range(first, first + 4)))

        await self.database.transact(body)

    async def poll(self, turn: int) -> None:
        """Poll with each provider in turn for one model, then for the next. When a provider polls again, its leases
        have expired."""
        session = SessionRow(b"\x01", 1 + turn % PROVIDERS)
        wanted = JobFilter(state="Open", model_id=1 + turn // PROVIDERS % (MODELS - 1))
        poll = checked_poll(session, wanted, 4, 100, 0)
        assert not isinstance(poll, NotSigned)
        assert len((await self.polls.answer(poll)).rows) == 4


class _AllPaid:
    """Skips the chain, because its cost is the node's."""

    async def hold_back_unpaid(self, _: list[JobRow], _at: Snapshot) -> bool:
        return False


@contextmanager
def _filled_database() -> Iterator[tuple[BlockingPortal, str]]:
    with tempfile.TemporaryDirectory() as directory, start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        folders = [Path(directory) / name for name in ("pg", "logs")]
        for folder in folders:
            folder.mkdir()
        with portal.wrap_async_context_manager(running_postgres(pick_free(), *folders)) as postgres:
            portal.call(_fill, postgres.url())
            yield portal, postgres.url()


async def _fill(url: str) -> None:
    async with open_database(url, smallest=1, largest=1) as database, database.connection() as connection:
        await migrate(connection)
        await begin_index(connection)
        await add_models(connection, MODELS)
        await add_providers(connection, PROVIDERS)
        await add_jobs(connection, JOBS, models=MODELS - 1)  # the last model has no jobs
        await connection.execute("create table bare (id integer primary key, n bigint not null default 0)")
        await connection.execute("insert into bare select n from generate_series(0, $1::integer + 3) as n", JOBS)
        tokens = ["svc_sess_" + hashlib.sha256(b"%d" % n).hexdigest() for n in range(1, IDS + 1)]
        await connection.executemany(
            "insert into sessions (token_hash, address, provider_id, expires_at)"
            " values ($1, '\\x01', $2, clock_timestamp() + interval '1 day')",
            [(hash_token(token), 1 + n % PROVIDERS) for n, token in enumerate(tokens)],
        )
        await connection.execute("vacuum analyze")


if __name__ == "__main__":
    for row in rows():
        print(row)
