"""HTTP: a hello through every layer of the coordinator, reads by key, and streams, compared with hypercorn alone.

The limit is a starlette hello, or a starlette stream of the same ten events, under unmodified hypercorn. All use
uvloop, 16 connections to each process, one process per server (two and four for the last rows), and a client in a
separate process. Cached reads are of one job, repeated while the index stands still. For reads from PostgreSQL the
index moves a block before each portion, and no portion reads a job twice, so no read is cached.

Client, PostgreSQL and servers share two cores, so requests per second cannot show the gain from more processes. The
last rows use CPU time: requests per CPU second of the servers, times the number of processes, as if each had a separate
core and the shared PostgreSQL kept up. The limit is that many times the figure of one process next to neighbours that
use a different PostgreSQL. On a busy machine a request takes more CPU because fewer requests share a query and
processes are switched, and this comparison removes that effect. The rest is the cost of sharing one PostgreSQL.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import asyncpg
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.migration import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.http_processes import PORTION, Ask, load_client, server
from tests.bench.row import Row, Turns, interleaved

ROUNDS: Final = 7  # short, so that compared portions run within seconds of each other
SLOW: Final = 800  # requests per portion of the slowest candidates
FEW: Final = 1_200  # the same for servers compared by CPU time
CONNECTIONS: Final = 16  # to each server process
PROCESSES: Final = {2: "two", 4: "four"}

_FILL: Final = (
    "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
    " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, ordinal)"
    " select sha256(n::text::bytea), '\\x01', sha256(n::text::bytea), 1, 3600, 1000000, 2000000, 1000, 1000, 0,"
    " 2000000000, 3000, 250, 2000, 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', '\\x02', n, 0, n - 1"
    " from generate_series(1, 20000) as n"
)


def rows() -> list[Row]:
    with ExitStack() as stack:
        database, other = (stack.enter_context(filled_database()) for _ in range(2))
        ask, ask_neighbours = stack.enter_context(load_client()), stack.enter_context(load_client())
        blocks, other_blocks = (stack.enter_context(_index(each)) for each in (database, other))

        def started(name: str, url: str, many: int = 1) -> list[_Server]:
            environment, ports = {"DATABASE_URL": url}, [pick_free() for _ in range(many)]
            return [_Server(port, stack.enter_context(server(name, port, environment))) for port in ports]

        hypercorn, whole = started("hypercorn", database), started("stack", database)
        points = started("points", database, max(PROCESSES))
        others = started("points", other, max(PROCESSES) - 1)
        path, one = "/v1/jobs/0x{id}", f"/v1/jobs/0x{sha256(b'1').hexdigest()}"
        candidates = {
            "hypercorn streams": _Loaded.of(hypercorn, ask, "/events", SLOW),
            "streams": _Loaded.of(whole, ask, "/events", SLOW),
            "stack": _Loaded.of(whole, ask, "/"),
            "kept": _Loaded.of(points[:1], ask, one),
            "hypercorn": _Loaded.of(hypercorn, ask, "/", SLOW),
            "points": _Loaded.of(points[:1], ask, path),
        }
        neighbours: dict[str, _Loaded] = {}
        for many, word in PROCESSES.items():
            candidates[f"{word} points"] = _Loaded.of(points[:many], ask, path, FEW)
            candidates[f"points of {word}"] = _Loaded.of(points[:1], ask, path, FEW)
            neighbours[f"points of {word}"] = _Loaded.of(others[: many - 1], ask_neighbours, path, FEW)

        def portion(name: str, loaded: _Loaded) -> int:
            if "points" in name:
                blocks.move()
            with neighbours[name].busy(other_blocks) if name in neighbours else nullcontext():
                return loaded.portion()

        rates = interleaved({name: partial(portion, name, loaded) for name, loaded in candidates.items()}, ROUNDS)
    own_cores = Turns({name: loaded.rates_on_own_cores[1:] for name, loaded in candidates.items()})
    hello, streams = "a starlette hello under hypercorn alone", "ten by starlette under hypercorn alone"
    return [
        rates.row("hello through every layer", "stack", "hypercorn", hello, target=2, unit="requests/s"),
        rates.row("job by id, kept since the last block", "kept", "hypercorn", hello, target=2, unit="requests/s"),
        rates.row("job by id, each read from PostgreSQL", "points", "hypercorn", hello, target=2, unit="requests/s"),
        rates.row(
            "stream of ten events, opened and told", "streams", "hypercorn streams", streams, target=2, unit="streams/s"
        ),
        *(_processes(own_cores, many, word) for many, word in PROCESSES.items()),
    ]


def _processes(own_cores: Turns, many: int, word: str) -> Row:
    gains = own_cores.ratios(f"{word} points", f"points of {word}")
    name = f"job by id, by CPU time and not by the clock: {word} processes over one PostgreSQL"
    against = f"{word} times one among others over another PostgreSQL"
    return Row.of(name, gains, "times", against, many, target=0.9)


@attrs.frozen
class _Server:
    port: int
    pid: int


@attrs.define
class _Loaded:
    """Servers under equal load, and the CPU time that they use for portions."""

    ask: Callable[[], int]
    pids: list[int]
    rates_on_own_cores: list[float] = attrs.field(factory=list)
    """Of each portion: requests per second if nothing else ran on as many cores as there are processes."""

    @classmethod
    def of(cls, servers: Sequence[_Server], ask: Ask, path: str, portion: int = PORTION) -> "_Loaded":
        asked = ask([each.port for each in servers], path, CONNECTIONS, portion=portion)
        return cls(asked, [each.pid for each in servers])

    def portion(self) -> int:
        before = self._spent()
        answered = self.ask()
        self.rates_on_own_cores.append(answered / (self._spent() - before) * len(self.pids))
        return answered

    @contextmanager
    def busy(self, blocks: "_Index") -> Iterator[None]:
        """Load the neighbours with one portion after another, each for another block."""
        left = threading.Event()

        def go_on() -> None:
            while not left.is_set():
                blocks.move()
                self.ask()

        asking = threading.Thread(target=go_on)
        asking.start()
        try:
            yield
        finally:
            left.set()
            asking.join()

    def _spent(self) -> float:
        """Return the CPU time in nanoseconds. The ticks of `stat` are too coarse to compare two servers."""
        threads = (path for pid in self.pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(path.read_text(encoding="ascii").split()[0]) for path in threads) / 1e9


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


@attrs.frozen
class _Index:
    portal: BlockingPortal
    connection: "asyncpg.Connection[asyncpg.Record]"

    def move(self) -> None:
        """Move the index to the next block."""
        moved = "update index_position set block_number = block_number + 1, block_hash = sha256(block_hash)"
        self.portal.call(self.connection.execute, moved)


@contextmanager
def _index(url: str) -> Iterator[_Index]:
    with start_blocking_portal("asyncio") as portal:
        connection = portal.call(asyncpg.connect, url)
        yield _Index(portal, connection)
        portal.call(connection.close)


async def _fill(url: str) -> None:
    async with open_database(url, smallest=1, largest=1) as database, database.connection() as connection:
        await migrate(connection)
        await connection.execute(_FILL)
        await connection.execute(
            "insert into index_position (block_number, block_hash, block_time) values (1, '\\x01', 1)"
        )
        await connection.execute("analyze jobs")


if __name__ == "__main__":
    for row in rows():
        print(row)
