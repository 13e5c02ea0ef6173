"""Replays: the load that one address causes by resuming events repeatedly, and the cost of streams that no client
reads.

The server has a separate process (`http_servers.py`) with a coordinator's limits per caller. The replaying address has
another process: over 16 connections, as fast as allowed, from ids in memory and from ids only in the table. Over two
other connections, jobs are read by id.
"""

import asyncio
import hashlib
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import quantiles
from typing import Final

import asyncpg

from devnet.ports import pick_free
from tests.bench import http
from tests.bench.http_processes import server
from tests.bench.memory import resident
from tests.bench.row import Row

EVENTS: Final = 45_000
BEHIND: Final = {"memory": 9_000, "the table": 44_000}
CONNECTIONS: Final = 16
STRANGER: Final = "127.0.0.66"
ROUNDS: Final = 5
ROUND_SECONDS: Final = 3.0
UNREAD: Final = {f"127.0.0.{n}": 64 for n in (70, 71, 72, 73)}
UNREAD_MIB: Final = 50
STALL_MS: Final = 500

_FILL: Final = (
    "insert into events (kind, block_number, block_time, job_id, owner, model_id, provider_id, designated, state,"
    " ended_because) select 1, n, 1800000000, sha256(n::text::bytea), '\\x01', 1, 0, 0, 0, 0"
    " from generate_series(1, $1::integer) n"
)


async def _fill(url: str) -> int:
    """Fill the database. Return the newest id."""
    connection = await asyncpg.connect(url)
    await connection.execute(_FILL, EVENTS)
    newest: int = await connection.fetchval("select max(id) from events")
    await connection.close()
    return newest


def _request(after: int) -> bytes:
    return f"GET /evm/events?after={after} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


async def _replay(port: int, after: int, newest: int) -> None:
    """Resume repeatedly, each time after receiving everything."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(STRANGER, 0))
        writer.write(_request(after))
        told = b""
        while piece := await reader.read(1 << 16):
            told = told[-64:] + piece
            if b"id: %d\n" % newest in told:
                break
            if b" 429 " in piece[:20]:
                await asyncio.sleep(0.05)
                break
        writer.close()


async def _attack(port: int, after: int, newest: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(_replay(port, after, newest))


@contextmanager
def _replaying(port: int, after: int, newest: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.replays", str(port), str(after), str(newest)]
    with subprocess.Popen(command) as process:
        time.sleep(1.0)  # its start, and its allowed burst
        try:
            yield
        finally:
            process.kill()


class _Reads:
    """Milliseconds of reads, each of another job."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.cycle(range(1, 20_001))

    def during(self, seconds: float) -> list[float]:
        return asyncio.run(self._during(seconds))

    async def _during(self, seconds: float) -> list[float]:
        took: list[float] = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(self._read_on(time.monotonic() + seconds, took))
        return took

    async def _read_on(self, until: float, took: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while time.monotonic() < until:
            job = hashlib.sha256(b"%d" % next(self._numbers)).hexdigest()
            began = time.monotonic()
            writer.write(f"GET /v1/jobs/0x{job} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            took.append(1000 * (time.monotonic() - began))
            await asyncio.sleep(0.01)
        writer.close()


def _p99(took: list[float]) -> float:
    return quantiles(took, n=100)[98]


def _replay_row(port: int, where: str, newest: int) -> Row:
    reads = _Reads(port)
    reads.during(1)
    quiet, beside = [], []
    for _ in range(ROUNDS):
        quiet.append(_p99(reads.during(ROUND_SECONDS)))
        with _replaying(port, newest - BEHIND[where], newest):
            beside.append(_p99(reads.during(ROUND_SECONDS)))
    name = f"slowest hundredth of reads while one address replays from {where}"
    return Row.of(name, beside, "ms", "without it", quiet, at_most=2)


def _unread_rows(port: int, pid: int, newest: int) -> list[Row]:
    reads, used, slowest = _Reads(port), [], []
    reads.during(1)
    for _ in range(3):
        before = resident(pid)
        with ExitStack() as stack:
            for address, many in UNREAD.items():
                for n in range(many):
                    stream = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
                    stack.enter_context(stream).sendall(_request(newest - BEHIND["memory"] + n))
            slowest.append(max(reads.during(ROUND_SECONDS)))
            used.append(resident(pid) - before)
    many = sum(UNREAD.values())
    return [
        Row.of(f"memory of {many} unread streams", used, "MiB", f"{UNREAD_MIB} MiB", UNREAD_MIB, at_most=1, by=max),
        Row.of(f"slowest read beside {many} unread streams", slowest, "ms", f"{STALL_MS} ms", STALL_MS, at_most=1),
    ]


def rows() -> list[Row]:
    with ExitStack() as stack:
        url = stack.enter_context(http.filled_database())
        newest = asyncio.run(_fill(url))
        port = pick_free()
        pid = stack.enter_context(server("replays", port, {"DATABASE_URL": url}))
        return [*(_replay_row(port, where, newest) for where in BEHIND), *_unread_rows(port, pid, newest)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(_attack(*map(int, sys.argv[1:])))
    else:
        for row in rows():
            print(row)
