"""Compare the cost of the same queries, submissions and blocks for a short book and for a long one.

The long book holds GROWTH_JOBS jobs (set in the environment). Of ten jobs, seven settled, two ended otherwise and one
expired unclaimed. It has as many open jobs as the short book. One owner has half of all jobs and continues to submit.
Work that both books have may take at most 1.3 times as long with the long one. The deepest page is compared with the
first page of its list. Finding it takes a sum of counts and most of a chunk of entries, so it may take 3 times as long,
at any depth.

Each book has a coordinator with a separate chain. Past jobs are only in the tables, as after a first backfill.
"""

import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from common.daemon.logs import set_up_logging
from coordinatord.api.book import leases_sql, outlooks_sql
from coordinatord.api.book.job_pages_sql import JobFilter, read_page
from coordinatord.api.book.jobs_sql import read_by_ids
from coordinatord.api.book.leases_sql import LeaseDemand, PollKey
from coordinatord.api.book.owner_sums_sql import read_summary
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.logs import Decoder
from coordinatord.chain.indexer.apply import apply_blocks
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.prepared import PreparedConnection
from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deployed_market
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.bench.indexing import JOURNAL_BLOCKS, filled
from tests.bench.quick_store import quick_store
from tests.bench.row import Row, Turns, interleaved
from tests.fakes.submissions import Submitter
from tests.integration.coordinatord.book.market_rows import add_history, add_jobs, add_models, add_providers
from tests.integration.coordinatord.scene.party import wallet_of
from tests.integration.coordinatord.scene.stage import Stage, configured, staged

JOBS: Final = int(os.environ.get("GROWTH_JOBS", "200_000"))
SHORT: Final = min(100_000, JOBS // 10)
SAME_OF_SHORT: Final = f"the same of {SHORT:,}"
OPEN, MODELS, PROVIDERS = 1_600, 16, 20
ROUNDS: Final = 9
PORTION: Final = 10
POSTS: Final = 16  # concurrent submissions
BLOCKS, POSTS_A_BLOCK = 10, 100  # written at a time
FOLDS, WARMING = 24, 8  # repetitions; the first ones do not count
TARGET: Final = 1 / 1.3
MOST_BYTES: Final = 1.3
DEEP_TARGET: Final = 1 / 3
DEEPEST: Final = 1_000_000  # the largest allowed offset
_SETTINGS: Final = ("shared_buffers=2GB", "max_wal_size=4GB")  # as config/postgresql recommends
_FILLING: Final = 3600.0  # seconds for one statement that fills a book
# Budgets are checked, but large enough for the benchmark.
_ROOM: Final = {"BUDGET_WALLET_GAS": 10**15, "BUDGET_NEWCOMERS_GAS": 10**15, "RELAY_MAX_DEPTH": 256}
_CLIENT: Final = accounts.derive().with_role("client")[0]
_OWNER: Final = wallet_of(_CLIENT)


@attrs.frozen(eq=False)
class Book:
    """`line` is a connection for reads by key, as the coordinator keeps it."""

    jobs: int
    url: str
    stage: Stage
    submitter: Submitter
    line: PreparedConnection

    @property
    def database(self) -> Database:
        return self.stage.ground.database


Question = Callable[[Database, PreparedConnection], Awaitable[object]]


def page_of(limit: int = 100, offset: int = 0, **wanted: object) -> Question:
    async def ask(database: Database, _: PreparedConnection) -> object:
        return await read_page(database, JobFilter(**wanted), limit, offset)  # type: ignore[arg-type] # as named below

    return ask


async def summary(database: Database, _: PreparedConnection) -> object:
    return await read_summary(database, _OWNER.address)


async def one_job(database: Database, line: PreparedConnection) -> object:
    return await read_by_ids(line, [b"\x01" * 32])


async def poll(database: Database, line: PreparedConnection) -> object:
    """Lease four bids for so short a time that the next poll may lease them again."""
    poller = PollKey(1, 1)
    await outlooks_sql.read_outlooks(line, [poller])

    async def body(connection: Connection) -> object:
        return await leases_sql.lease(connection, LeaseDemand(poller, 4, JobFilter()), 1)

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


def deep(jobs: int) -> dict[str, tuple[Question, Question]]:
    """Return the deepest page of a list and its first page, by name."""
    lists: dict[str, tuple[int, dict[str, object]]] = {
        "no filter, newest first": (jobs, {"newest_first": True}),
        "state=Settled": (jobs * 7 // 10, {"state": "Settled"}),
        "state=Settled, newest first": (jobs * 7 // 10, {"state": "Settled", "newest_first": True}),
        "one owner, newest first": (jobs // 2, {"owner": _OWNER.address, "newest_first": True}),
        "one model's cancelled": (jobs // MODELS // 4, {"model_id": 3, "state": "Cancelled"}),
    }
    return {
        f"offset {offset:,}: {name}": (page_of(offset=offset, **wanted), page_of(**wanted))
        for name, (length, wanted) in lists.items()
        for offset in [min(DEEPEST, length * 9 // 10)]
    }


def rows() -> list[Row]:
    set_up_logging("warning")
    with ExitStack() as ground:
        portal = ground.enter_context(start_blocking_portal("asyncio", {"use_uvloop": True}))
        with ExitStack() as coordinators:
            short, long = books(portal, ground, coordinators, [SHORT, JOBS])
            sizes = [_sizes(portal, short, long)]
            reads = _reads(portal, short, long)
            sizes.append(_sizes(portal, short, long))
            posts = _submissions(portal, short, long)
            sizes.append(_sizes(portal, short, long))
            found = [*reads, posts, *_size_rows(sizes)]
        # Last, because their books get another chain's blocks.
        return [*found, _folding(portal, {"ours": long.url, "other": short.url})]


def _reads(portal: BlockingPortal, short: Book, long: Book) -> list[Row]:
    against_short = [
        (
            name,
            SAME_OF_SHORT,
            TARGET,
            partial(asked, portal, long, what),
            partial(asked, portal, short, what),
        )
        for name, what in SAME.items()
    ]
    against_first = [
        (name, "the first page", DEEP_TARGET, partial(asked, portal, long, far), partial(asked, portal, long, first))
        for name, (far, first) in deep(JOBS).items()
    ]
    return [
        _row(name, "reads/s", against, target, interleaved({"ours": ours, "other": other}, ROUNDS))
        for name, against, target, ours, other in (*against_short, *against_first)
    ]


def asked(portal: BlockingPortal, book: Book, what: Question) -> int:
    async def portion() -> int:
        for _ in range(PORTION):
            await what(book.database, book.line)
        return PORTION

    return portal.call(portion)


def _submissions(portal: BlockingPortal, short: Book, long: Book) -> Row:
    """POST /v1/jobs until its 201: checked, budgeted, stored, relayed, mined. Signed beforehand."""
    bodies = {book: book.submitter.lines(POSTS * (ROUNDS + 1), 1_000) for book in (short, long)}

    async def post(book: Book) -> None:
        answer = await book.stage.http.post("/v1/jobs", json=bodies[book].pop())
        if answer.status_code != 201:
            raise AssertionError(answer.text)

    async def portion(book: Book) -> int:
        async with anyio.create_task_group() as tasks:
            for _ in range(POSTS):
                tasks.start_soon(post, book)
        return POSTS

    candidates = {name: partial(portal.call, portion, book) for name, book in (("ours", long), ("other", short))}
    name = f"POST /v1/jobs to its 201, {POSTS} at a time"
    return _row(name, "posts/s", SAME_OF_SHORT, TARGET, interleaved(candidates, ROUNDS))


def _folding(portal: BlockingPortal, urls: dict[str, str]) -> Row:
    """Write blocks of posts near the head into the tables, with the undo log, every index and every sum. They are read
    and decoded beforehand.

    Job ids are hashes, so posts touch every page of their index. A fresh database reads each page once, and a long book
    needs a hundred thousand posts for this. The measurement covers the time after that.
    """
    with filled(BLOCKS * FOLDS, POSTS_A_BLOCK, "dense") as chain:

        async def fetched() -> list[list[BlockRange]]:
            async with open_rpc(chain.rpc_url) as rpc:
                source = NodeSource(rpc, Decoder(chain.book))
                return [await source.blocks(first, first + BLOCKS - 1) for first in range(1, chain.blocks, BLOCKS)]

        turns = portal.call(fetched)

    async def fold() -> Turns:
        """Return posts per second of each book in turn."""
        lines = {name: await asyncpg.connect(url) for name, url in urls.items()}
        for line in lines.values():
            await line.execute("truncate index_blocks, undo_journal")
            async with line.transaction():
                await line.execute("set local enable_seqscan = off; set local enable_bitmapscan = off")
                await line.execute("select count(*) from (select job_id from jobs order by job_id offset 0) ids")
        taken: dict[str, list[float]] = {name: [] for name in urls}
        for turn, blocks in enumerate(turns):
            for name in list(lines) if turn % 2 else reversed(list(lines)):
                began = time.perf_counter()
                await apply_blocks(lines[name], blocks, window=JOURNAL_BLOCKS, rebuilding=False)
                taken[name].append(BLOCKS * POSTS_A_BLOCK / (time.perf_counter() - began))
        for line in lines.values():
            await line.close()
        return Turns({name: found[WARMING:] for name, found in taken.items()})

    rates = portal.call(fold)
    return _row(f"blocks of {POSTS_A_BLOCK} posts folded into the tables", "posts/s", SAME_OF_SHORT, TARGET, rates)


_SIZES: Final = {
    "the table of jobs": "pg_table_size('jobs')",
    "its indexes": "pg_indexes_size('jobs')",
    "the sums of it": "pg_total_relation_size('job_counts') + pg_total_relation_size('owner_sums')",
}


def _sizes(portal: BlockingPortal, short: Book, long: Book) -> dict[str, list[float]]:
    """Return bytes per job of the short and the long book."""

    def each(book: Book, size: str) -> float:
        return int(str(portal.call(book.stage.fetchval, f"select {size}"))) / book.jobs

    return {name: [each(book, size) for book in (short, long)] for name, size in _SIZES.items()}


def _size_rows(sizes: list[dict[str, list[float]]]) -> list[Row]:
    """Compare sizes before the reads, after them, and after the submissions."""
    return [
        Row.of(
            f"{name} for each job, at three times of the run, of {JOBS:,} jobs",
            [at[name][1] for at in sizes],
            "bytes",
            SAME_OF_SHORT,
            [at[name][0] for at in sizes],
            at_most=MOST_BYTES,
        )
        for name in _SIZES
    ]


def _row(name: str, unit: str, against: str, target: float, rates: Turns) -> Row:
    return rates.row(f"{name}, of {JOBS:,} jobs", "ours", "other", against, target=target, unit=unit)


def books(portal: BlockingPortal, ground: ExitStack, coordinators: ExitStack, lengths: list[int]) -> list[Book]:
    """`ground` holds the services, which may outlive the `coordinators`."""
    folder = Path(ground.enter_context(tempfile.TemporaryDirectory()))
    for part in ("pg", "logs"):
        (folder / part).mkdir()
    running = running_postgres(pick_free(), folder / "pg", folder / "logs", *_SETTINGS)
    postgres = ground.enter_context(portal.wrap_async_context_manager(running))
    store = ground.enter_context(portal.wrap_async_context_manager(quick_store(pick_free(), folder / "logs")))
    opened = []
    for number, jobs in enumerate(lengths):
        home = folder / f"anvil-{number}"
        home.mkdir()
        anvil = ground.enter_context(portal.wrap_async_context_manager(running_anvil(pick_free(), home, home)))
        cast = accounts.derive()
        world = World(anvil, store, postgres, cast, portal.call(deployed_market, anvil, cast))
        opened.append(_book(portal, coordinators, world, jobs))
    return opened


def _book(portal: BlockingPortal, stack: ExitStack, world: World, jobs: int) -> Book:
    """Start a coordinator. Fill its tables once its index has reached the head."""
    name = f"book_{jobs}"
    portal.call(world.postgres.execute, f"create database {name}")
    url = world.postgres.url(name)
    config = configured(world, url, **_ROOM)
    stage = stack.enter_context(portal.wrap_async_context_manager(staged(world, config, [])))
    portal.call(_fill, url, jobs)

    async def submitter() -> Submitter:
        book = config.addresses
        terms = await JobRegistry(stage.ground.rpc, book.job_registry).fees()
        return Submitter(_OWNER, stage.ground.domains, book.chain_id, book.job_registry, terms, _CLIENT.box_key)

    return Book(jobs, url, stage, portal.call(submitter), stage.ground.database.prepared_connection())


async def _fill(dsn: str, jobs: int) -> None:
    """Run statements that take minutes, beyond the timeouts of the daemon's pool."""
    async with (
        open_database(dsn, smallest=1, largest=1, statement_timeout=_FILLING) as database,
        database.connection() as connection,
    ):
        await add_models(connection, MODELS)
        await add_providers(connection, PROVIDERS)
        await add_history(connection, jobs, models=MODELS, providers=PROVIDERS, owner=_OWNER.address)
        await add_jobs(connection, OPEN, models=MODELS, after=jobs)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")  # otherwise the first queries would wait for the disk


if __name__ == "__main__":
    for row in rows():
        print(row)
