"""Reads of a long book, compared with the same reads of a short one.

The long book holds GROWTH_JOBS jobs (set in the environment; ten million take half an hour to fill). Of ten jobs, seven
settled, two ended otherwise and one expired unclaimed. It has as many open jobs as the short book. One owner has half
of all jobs.
"""

import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from coordinatord.api.book import leases_sql, outlooks_sql
from coordinatord.api.book.job_pages_sql import JobFilter, read_page
from coordinatord.api.book.jobs_sql import read_jobs_by_ids
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.owner_sums_sql import read_summary
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.prepared import PreparedConnection
from devnet import accounts
from devnet.ports import pick_free
from devnet.postgres import Postgres, running_postgres
from tests.bench.row import Row, Turns, interleaved
from tests.integration.coordinatord.book.market_rows import (
    add_history,
    add_jobs,
    add_models,
    add_providers,
    begin_index,
)
from tests.integration.coordinatord.scene.party import wallet_of

JOBS: Final = int(os.environ.get("GROWTH_JOBS", "1_000_000"))
SHORT: Final = 100_000
OPEN, MODELS, PROVIDERS = 1_600, 16, 20
MAX_TIMES: Final = 1.5
SECONDS: Final = 1.2  # for each kind of read
TURN_S: Final = 0.1
_PORTION: Final = 10
_SETTINGS: Final = ("shared_buffers=2GB", "max_wal_size=4GB")  # as config/postgresql recommends
_FILLING_S: Final = 3600.0  # for one statement that fills a book
_OWNER: Final = wallet_of(accounts.derive_wallets().with_role("client")[0])


@attrs.frozen(eq=False)
class Book:
    """`line` is a connection for reads by key, as the coordinator keeps it."""

    database: Database
    line: PreparedConnection


Question = Callable[[Database, PreparedConnection], Awaitable[object]]


def page_of(limit: int = 100, offset: int = 0, **wanted: object) -> Question:
    async def ask(database: Database, _: PreparedConnection) -> object:
        return await read_page(database, JobFilter(**wanted), limit, offset)  # type: ignore[arg-type] # as named below

    return ask


async def summary(database: Database, _: PreparedConnection) -> object:
    return await read_summary(database, _OWNER.address)


async def one_job(database: Database, line: PreparedConnection) -> object:
    return await read_jobs_by_ids(line, [b"\x01" * 32])


async def poll(database: Database, line: PreparedConnection) -> object:
    """Lease four bids for so short a time that the next poll may lease them again."""
    poller = PollKey(1, 1)
    await outlooks_sql.read_outlooks(line, [poller])

    async def body(connection: Connection) -> object:
        return await leases_sql.lease_jobs(connection, poller, 4, JobFilter(), 1)

    return await database.transact(body)


# Queries of both the short and the long book.
SAME: Final[dict[str, Question]] = {
    "a poll that leases four bids": poll,
    "the summary of an owner": summary,
    "a job by its id": one_job,
    "a page of state=Open": page_of(state="Open"),
    "a page of state=Cancelled": page_of(state="Cancelled"),
    "a page of state=Settled, newest first": page_of(state="Settled", newest_first=True),
    "a page of one model": page_of(model_id=3),
    "a page of one owner, newest first": page_of(owner=_OWNER.address, newest_first=True),
    "a page of one provider's settled": page_of(provider_id=5, state="Settled"),
}


def rows() -> list[Row]:
    with ExitStack() as ground:
        portal = ground.enter_context(start_blocking_portal("asyncio", {"use_uvloop": True}))
        short, long = _books(portal, ground, [SHORT, JOBS])

        def times(read: Question) -> Turns:
            candidates = {"long": partial(_asked, portal, long, read), "short": partial(_asked, portal, short, read)}
            return interleaved(candidates, SECONDS, TURN_S)

        measured = {name: times(read) for name, read in SAME.items()}
        size = portal.call(_bytes, long.database)
    slowest = max(measured, key=lambda name: median(measured[name].ratios("short", "long")))
    taken = measured[slowest].taken
    long_us, short_us = ([1e6 / rate for rate in taken[name]] for name in ("long", "short"))
    return [
        Row.of(
            f"reads at {JOBS:,} jobs, the slowest of {len(SAME)} kinds",
            long_us,
            "µs",
            f"the same of {SHORT:,} ({slowest}; {size / 1e9:.2f} GB with indexes and sums)",
            short_us,
            at_most=MAX_TIMES,
        )
    ]


def _asked(portal: BlockingPortal, book: Book, read: Question) -> int:
    async def portion() -> int:
        for _ in range(_PORTION):
            await read(book.database, book.line)
        return _PORTION

    return portal.call(portion)


def _books(portal: BlockingPortal, stack: ExitStack, lengths: list[int]) -> list[Book]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for part in ("pg", "logs"):
        (folder / part).mkdir()
    running = running_postgres(pick_free(), folder / "pg", folder / "logs", *_SETTINGS)
    postgres = stack.enter_context(portal.wrap_async_context_manager(running))
    books = []
    for jobs in lengths:
        url = portal.call(_filled, postgres, jobs)
        pool = open_database(url, max_size=4)
        database = stack.enter_context(portal.wrap_async_context_manager(pool))
        books.append(Book(database, database.prepared_connection()))
    return books


async def _filled(postgres: Postgres, jobs: int) -> str:
    """Create and fill a database. Its statements take minutes, beyond the timeouts of the daemon's pool."""
    name = f"book_{jobs}"
    await postgres.execute(f"create database {name}")
    url = postgres.url(name)
    async with (
        open_database(url, max_size=1, statement_timeout_s=_FILLING_S) as database,
        database.connection() as connection,
    ):
        await migrate(connection)
        await begin_index(connection)
        await add_models(connection, MODELS)
        await add_providers(connection, PROVIDERS)
        await add_history(connection, jobs, models=MODELS, providers=PROVIDERS, owner=_OWNER.address)
        await add_jobs(connection, OPEN, models=MODELS, after=jobs)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")  # otherwise the first queries would wait for the disk
    return url


async def _bytes(database: Database) -> int:
    async with database.connection() as connection:
        return int(
            await connection.fetchval(
                "select pg_total_relation_size('jobs') + pg_total_relation_size('job_counts')"
                " + pg_total_relation_size('owner_sums')"
            )
        )
