"""HTTP: what the layers of the coordinator cost, and what a read by key costs, beside a bare starlette hello.

All under hypercorn with uvloop, 16 connections, one server process each (two for the last row), the client in a
process of its own. The reads go to PostgreSQL, over a thousand jobs of 20,000.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from anyio.from_thread import start_blocking_portal

from coordinatord.store.database import open_database
from coordinatord.store.migrate import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.row import Row, interleaved

PORTION: Final = 3_000
ROUNDS: Final = 7

_FILL: Final = (
    "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
    " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log)"
    " select sha256(n::text::bytea), '\\x01', sha256(n::text::bytea), 1, 3600, 1000000, 2000000, 1000, 1000, 0,"
    " 2000000000, 3000, 250, 2000, 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', '\\x02', n, 0"
    " from generate_series(1, 20000) as n"
)


def rows() -> list[Row]:
    with ExitStack() as stack:
        stack.enter_context(_filled_database())
        path = "/v1/jobs/0x{id}"
        ask = stack.enter_context(_client())

        def server(name: str, processes: int = 1) -> int:
            port = pick_free()
            for _ in range(processes):
                stack.enter_context(_server(name, port))
            return port

        candidates = {
            "starlette": ask(server("starlette"), "/"),
            "stack": ask(server("stack"), "/"),
            "points": ask(server("points"), path),
            "two": ask(server("points", 2), path),
        }
        rates = interleaved(candidates, ROUNDS)
    hello = "a bare starlette hello, one process"
    return [
        _row("hello through every layer", rates["stack"], rates["starlette"], hello, 0.9),
        _row("job by id, from PostgreSQL", rates["points"], rates["starlette"], hello, 0.85),
        _row("job by id, two processes", rates["two"], rates["points"], "the same, one process", 1.8),
    ]


def _row(name: str, rate: float, limit: float, against: str, target: float) -> Row:
    ratio = rate / limit
    return Row(name, rate, "requests/s", against, ratio, target, ratio >= target)


_DATABASE: dict[str, str] = {}


@contextmanager
def _filled_database() -> Iterator[None]:
    """Its address is in `_DATABASE`; the id of job n is the sha256 of n."""
    with tempfile.TemporaryDirectory() as directory, start_blocking_portal("asyncio") as portal:
        folders = [Path(directory) / name for name in ("pg", "logs")]
        for folder in folders:
            folder.mkdir()
        with portal.wrap_async_context_manager(running_postgres(pick_free(), *folders)) as postgres:
            _DATABASE["DATABASE_URL"] = postgres.url()
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


@contextmanager
def _server(name: str, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.http_servers", name, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": "", **_DATABASE}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        try:
            yield
        finally:
            process.kill()


@contextmanager
def _client() -> Iterator[Callable[[int, str], Callable[[], int]]]:
    command = [sys.executable, "-m", "tests.bench.http_load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout

        def ask(port: int, path: str) -> Callable[[], int]:
            def portion() -> int:
                to.write(f"127.0.0.1 {port} {path} {PORTION}\n")
                to.flush()
                return int(back.readline())

            return portion

        try:
            yield ask
        finally:
            process.kill()


if __name__ == "__main__":
    for row in rows():
        print(row)
