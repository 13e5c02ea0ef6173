"""What a market's past costs its present: the same questions to a book of a few thousand jobs, and to one of millions.

The long book holds GROWTH_JOBS jobs (a million unless the environment says another number) of which seven in ten
settled, two ended otherwise and one expired unclaimed, and as many open ones as the short book. What is asked of both
must take at most 1.3 times as long of the long one. A page as deep as offsets go is held against the first of its list:
finding it takes a sum of counts and most of a chunk of entries, for which it may take 3 times as long, however deep.
"""

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from anyio.from_thread import BlockingPortal, start_blocking_portal

from coordinatord.book import leases_sql
from coordinatord.book.leases_sql import LeaseRequest, PollKey
from coordinatord.book.sql import JobFilter, read_by_ids, read_page, read_summary
from coordinatord.database.connections import Connection, Database, PreparedConnection, open_database
from coordinatord.database.migrate import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.row import Row, interleaved
from tests.integration.coordinatord.book.market_rows import (
    add_history,
    add_jobs,
    add_models,
    add_providers,
    begin_index,
    owner_of,
)

JOBS: Final = int(os.environ.get("GROWTH_JOBS", "1_000_000"))
SHORT: Final = 10_000
OPEN, MODELS, PROVIDERS = 1_600, 16, 20
ROUNDS: Final = 9
PORTION: Final = 10
TARGET: Final = 1 / 1.3
DEEP_TARGET: Final = 1 / 3
DEEPEST: Final = 1_000_000  # the largest offset there is
_FILLING: Final = 3600.0  # seconds for one statement that fills a book

Question = Callable[[Database, PreparedConnection], Awaitable[object]]
_OWNER: Final = owner_of(0)  # of half of all jobs


def page_of(limit: int = 100, offset: int = 0, **wanted: object) -> Question:
    async def ask(database: Database, _: PreparedConnection) -> object:
        return await read_page(database, JobFilter(**wanted), limit, offset)  # type: ignore[arg-type] # as named below

    return ask


async def summary(database: Database, _: PreparedConnection) -> object:
    return await read_summary(database, _OWNER)


async def one_job(database: Database, line: PreparedConnection) -> object:
    return await read_by_ids(line, [b"\x01" * 32])


async def poll(database: Database, line: PreparedConnection) -> object:
    """Four bids, held for a moment so short that the next poll may have them again."""
    poller = PollKey(1, 1)
    await leases_sql.peek(line, [poller], {})

    async def body(connection: Connection) -> object:
        return await leases_sql.poll(connection, [LeaseRequest(poller, 4)], JobFilter(), lease_ms=1, custody=None)

    return await database.transact(body)


# Asked of the short book and of the long one.
SAME: Final[dict[str, Question]] = {
    "a poll that leases four bids": poll,
    "the summary of an owner": summary,
    "a job by its id": one_job,
    "a page of state=Open": page_of(state="Open"),
    "a page of state=Cancelled": page_of(state="Cancelled"),
    "a page of state=Settled, newest first": page_of(state="Settled", newest_first=True),
    "a page of one model": page_of(model_id=3),
    "a page of one owner, newest first": page_of(owner=_OWNER, newest_first=True),
    "a page of one provider's settled": page_of(provider_id=5, state="Settled"),
}


def deep(jobs: int) -> dict[str, tuple[Question, Question]]:
    """By name, the deepest page of a list and its first."""
    lists: dict[str, tuple[int, dict[str, object]]] = {
        "no filter, newest first": (jobs, {"newest_first": True}),
        "state=Settled": (jobs * 7 // 10, {"state": "Settled"}),
        "state=Settled, newest first": (jobs * 7 // 10, {"state": "Settled", "newest_first": True}),
        "one owner, newest first": (jobs // 2, {"owner": _OWNER, "newest_first": True}),
        "one model's cancelled": (jobs // MODELS // 4, {"model_id": 3, "state": "Cancelled"}),
    }
    return {
        f"offset {offset:,}: {name}": (page_of(offset=offset, **wanted), page_of(**wanted))
        for name, (length, wanted) in lists.items()
        for offset in [min(DEEPEST, length * 9 // 10)]
    }


def rows() -> list[Row]:
    with ExitStack() as stack:
        portal, (short, long) = stack.enter_context(books([SHORT, JOBS]))
        against_short = [
            (
                name,
                f"the same of {SHORT:,}",
                TARGET,
                partial(asked, portal, long, what),
                partial(asked, portal, short, what),
            )
            for name, what in SAME.items()
        ]
        against_first = [
            (
                name,
                "the first page",
                DEEP_TARGET,
                partial(asked, portal, long, far),
                partial(asked, portal, long, first),
            )
            for name, (far, first) in deep(JOBS).items()
        ]
        return [_row(*case) for case in (*against_short, *against_first)]


def asked(portal: BlockingPortal, book: tuple[Database, PreparedConnection], what: Question) -> int:
    async def portion() -> int:
        for _ in range(PORTION):
            await what(*book)
        return PORTION

    return portal.call(portion)


def _row(name: str, against: str, target: float, ours: Callable[[], int], other: Callable[[], int]) -> Row:
    rates = interleaved({"ours": ours, "other": other}, ROUNDS)
    ratio = rates["ours"] / rates["other"]
    return Row(f"{name}, of {JOBS:,} jobs", rates["ours"], "reads/s", against, ratio, target, ratio >= target)


@contextmanager
def books(lengths: list[int]) -> Iterator[tuple[BlockingPortal, list[tuple[Database, PreparedConnection]]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        portal = stack.enter_context(start_blocking_portal("asyncio", {"use_uvloop": True}))
        for part in ("pg", "logs"):
            (folder / part).mkdir()
        running = running_postgres(pick_free(), folder / "pg", folder / "logs")
        postgres = stack.enter_context(portal.wrap_async_context_manager(running))
        opened = []
        for number, jobs in enumerate(lengths):
            portal.call(postgres.execute, f"create database book_{number}")
            portal.call(_fill, postgres.url(f"book_{number}"), jobs)
            pool = open_database(postgres.url(f"book_{number}"), smallest=1, largest=2)
            database = stack.enter_context(portal.wrap_async_context_manager(pool))
            opened.append((database, database.prepared_connection()))
        yield portal, opened


async def _fill(dsn: str, jobs: int) -> None:
    """In statements of minutes, which no pool of the daemon's would wait for."""
    async with (
        open_database(dsn, smallest=1, largest=1, statement_timeout=_FILLING) as database,
        database.connection() as connection,
    ):
        await migrate(connection)
        await begin_index(connection)
        await add_models(connection, MODELS)
        await add_providers(connection, PROVIDERS)
        await add_history(connection, jobs, models=MODELS, providers=PROVIDERS)
        await add_jobs(connection, OPEN, models=MODELS, after=jobs)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")  # else the first questions wait for the disk, which writes the book


if __name__ == "__main__":
    for row in rows():
        print(row)
