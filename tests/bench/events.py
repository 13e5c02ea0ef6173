"""Events: what ten thousand idle listeners cost one process, and how soon an idle provider claims what is posted.

The listeners are connections of this process to a server in a process of its own (`http_servers.py`), each on a job of
its own; nothing happens but heartbeats. The provider is the devnet's, on a chain that mines every transaction at once:
what is counted is all but the wait for a block. `EVENT_LISTENERS` and `EVENT_JOBS` make the runs smaller.
"""

import hashlib
import os
import shlex
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import anyio

from devnet import manifest
from devnet.app import local_world
from devnet.ports import pick_free
from devnet.settings import DevnetSettings
from svc.client import Client
from svc.records import Job
from tests.bench import http
from tests.bench.http_processes import server
from tests.bench.memory import resident
from tests.bench.provider import cpu_seconds
from tests.bench.row import Row

LISTENERS: Final = int(os.environ.get("EVENT_LISTENERS", "10000"))
JOBS: Final = int(os.environ.get("EVENT_JOBS", "20"))
IDLE_SECONDS: Final = 40.0  # two heartbeats of each
MEMORY: Final = 1024 / 10_000  # MiB of a listener at most
SHARE: Final = 5.0 / 10_000  # percent of a core
_IDLE_AGAIN: Final = 1.0  # seconds until the provider waits for work again
CLAIMED_WITHIN: Final = 150.0  # ms


def _opened(port: int, n: int) -> socket.socket:
    """A stream of the n-th job of the database."""
    stream = socket.create_connection(("127.0.0.1", port))
    job_id = hashlib.sha256(b"%d" % n).hexdigest()
    stream.sendall(f"GET /v1/jobs/0x{job_id}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return stream


def _listening_rows() -> list[Row]:
    with ExitStack() as stack:
        stack.enter_context(http.filled_database())
        port = pick_free()
        pid = stack.enter_context(server("events", port, http.DATABASE))
        before = resident(pid)
        streams = [stack.enter_context(_opened(port, n)) for n in range(1, LISTENERS + 1)]
        for stream in streams:
            stream.settimeout(60)
            told = b""
            while b"event: posted" not in told:
                told += stream.recv(4096)
        began, spent = time.monotonic(), cpu_seconds(pid)
        time.sleep(IDLE_SECONDS)
        share = 100 * (cpu_seconds(pid) - spent) / (time.monotonic() - began)
        used = resident(pid) - before
    memory, most = MEMORY * LISTENERS, SHARE * LISTENERS
    what = f"{LISTENERS:,} idle listeners"
    return [
        Row(f"memory of {what}", used, "MiB", f"{memory:g} MiB", used / memory, 1, used <= memory),
        Row(f"CPU of {what}", share, "% of a core", f"{most:g} %", share / most, 1, share <= most),
    ]


async def _claims(settings: DevnetSettings) -> list[float]:
    """Milliseconds from the answer to a post until its claim is told."""
    async with local_world(settings, lambda _: None):
        exported = (shlex.split(line)[1].partition("=") for line in manifest.exports(settings.state_dir).splitlines())
        environment = {name: value for name, _, value in exported}
        async with Client(environment=environment, on_first_use=lambda _: None) as client:
            return [await _claimed(client) for _ in range(JOBS)]


async def _claimed(client: Client) -> float:
    order = await client.prepare("demo/text-small", "sealed jobs", window="async")
    posted = await client.submit(order, max_amount=10**6)
    began = time.monotonic()
    told: list[float] = []

    def seen(job: Job) -> None:
        if job.status != "queued":
            told.append((time.monotonic() - began) * 1000)

    await client.wait(posted.job_id, on_change=seen)
    await anyio.sleep(_IDLE_AGAIN)
    return told[0]


def _claimed_row() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        ports = {name: pick_free() for name in ("rpc_port", "pin_store_port", "database_port", "api_port")}
        settings = DevnetSettings(state_dir=Path(folder) / "world", metrics_port=pick_free(), block_time=None, **ports)
        taken = anyio.run(_claims, settings)
    middle = statistics.median(taken)
    what, against = "from posted to claimed by an idle provider", f"{CLAIMED_WITHIN:g} ms and no block"
    return Row(what, middle, "ms", against, middle / CLAIMED_WITHIN, 1, middle <= CLAIMED_WITHIN)


def rows() -> list[Row]:
    return [*_listening_rows(), _claimed_row()]


if __name__ == "__main__":
    for row in rows():
        print(row)
