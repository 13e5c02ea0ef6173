"""HTTP: what the layers of the coordinator cost, and what a read by key costs, beside a bare starlette hello.

All under hypercorn with uvloop, 16 connections to each process, one process a server (two for the last row), the client
in a process of its own. The reads go to PostgreSQL, over a thousand jobs of 20,000.

What a second process adds cannot be seen in requests per second where client, PostgreSQL and servers share two cores.
The last row is what it can be on cores of their own: requests per second of the servers' CPU time, times the number of
processes. It falls short of two by what the processes cost each other: caches, the kernel, sockets shared out unevenly.
The bare hello is put through the same: the target is 1.8, or nine tenths of its factor where even that is less.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs
from anyio.from_thread import start_blocking_portal

from coordinatord.database.connections import open_database
from coordinatord.database.migrate import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.http_processes import load_client, server
from tests.bench.row import Row, interleaved

ROUNDS: Final = 7
CONNECTIONS: Final = 16  # to each server process

_FILL: Final = (
    "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
    " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, ordinal)"
    " select sha256(n::text::bytea), '\\x01', sha256(n::text::bytea), 1, 3600, 1000000, 2000000, 1000, 1000, 0,"
    " 2000000000, 3000, 250, 2000, 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', '\\x02', n, 0, n - 1"
    " from generate_series(1, 20000) as n"
)


def rows() -> list[Row]:
    with ExitStack() as stack:
        stack.enter_context(filled_database())
        path = "/v1/jobs/0x{id}"
        ask = stack.enter_context(load_client())

        def under_load(name: str, path: str, processes: int = 1) -> _Loaded:
            port = pick_free()
            pids = [stack.enter_context(server(name, port, DATABASE)) for _ in range(processes)]
            return _Loaded(ask(port, path, processes * CONNECTIONS), pids)

        candidates = {
            "starlette": under_load("starlette", "/"),
            "two starlettes": under_load("starlette", "/", 2),
            "stack": under_load("stack", "/"),
            "points": under_load("points", path),
            "two points": under_load("points", path, 2),
        }
        rates = interleaved({name: loaded.portion for name, loaded in candidates.items()}, ROUNDS)
    own_cores = {name: loaded.rate_on_own_cores() for name, loaded in candidates.items()}
    factor_of_hello = own_cores["two starlettes"] / own_cores["starlette"]
    hello = "a bare starlette hello, one process"
    return [
        _row("hello through every layer", rates["stack"], rates["starlette"], hello, 0.9),
        _row("job by id, from PostgreSQL", rates["points"], rates["starlette"], hello, 0.85),
        _row(
            "job by id, two processes on cores of their own",
            own_cores["two points"],
            own_cores["points"],
            f"the same, one process (hello: × {factor_of_hello:.2f})",
            min(1.8, round(0.9 * factor_of_hello, 2)),
        ),
    ]


def _row(name: str, rate: float, limit: float, against: str, target: float) -> Row:
    ratio = rate / limit
    return Row(name, rate, "requests/s", against, ratio, target, ratio >= target)


@attrs.define
class _Loaded:
    """Servers on one port, and the CPU time that they spend on portions."""

    ask: Callable[[], int]
    pids: list[int]
    answered: int = 0
    cpu_seconds: float = 0.0

    def portion(self) -> int:
        before = self._spent()
        answered = self.ask()
        self.cpu_seconds += self._spent() - before
        self.answered += answered
        return answered

    def rate_on_own_cores(self) -> float:
        """Requests per second if nothing else ran on as many cores as there are processes."""
        return self.answered / self.cpu_seconds * len(self.pids)

    def _spent(self) -> float:
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
        return ticks / os.sysconf("SC_CLK_TCK")


DATABASE: dict[str, str] = {}


@contextmanager
def filled_database() -> Iterator[None]:
    """Its address is in `DATABASE`; the id of job n is the sha256 of n."""
    with tempfile.TemporaryDirectory() as directory, start_blocking_portal("asyncio") as portal:
        folders = [Path(directory) / name for name in ("pg", "logs")]
        for folder in folders:
            folder.mkdir()
        with portal.wrap_async_context_manager(running_postgres(pick_free(), *folders)) as postgres:
            DATABASE["DATABASE_URL"] = postgres.url()
            portal.call(_fill, postgres.url())
            yield


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
