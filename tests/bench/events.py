"""Events: what ten thousand idle listeners cost one process.

The listeners are connections of this process to a server in a process of its own (`http_servers.py`), each on a job of
its own; nothing happens but heartbeats. `EVENT_LISTENERS` makes the run smaller.
"""

import hashlib
import os
import socket
import time
from contextlib import ExitStack
from typing import Final

from devnet.ports import pick_free
from tests.bench import http
from tests.bench.http_processes import server
from tests.bench.memory import resident
from tests.bench.provider import cpu_seconds
from tests.bench.row import Row

LISTENERS: Final = int(os.environ.get("EVENT_LISTENERS", "10000"))
IDLE_SECONDS: Final = 20.0  # a heartbeat of each
MEMORY: Final = 1024 / 10_000  # MiB of a listener at most
SHARE: Final = 5.0 / 10_000  # percent of a core


def _opened(port: int, n: int) -> socket.socket:
    """A stream of the n-th job of the database."""
    stream = socket.create_connection(("127.0.0.1", port))
    job_id = hashlib.sha256(b"%d" % n).hexdigest()
    stream.sendall(f"GET /v1/jobs/0x{job_id}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return stream


def rows() -> list[Row]:
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


if __name__ == "__main__":
    for row in rows():
        print(row)
