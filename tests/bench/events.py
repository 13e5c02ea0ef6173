"""Events: the cost of ten thousand idle listeners to one process.

The listeners are connections of this process to a server in a separate process (`http_servers.py`), each for a
different job. Only heartbeats are sent. `EVENT_LISTENERS` makes the run smaller.
"""

import hashlib
import os
import socket
import time
from contextlib import ExitStack
from statistics import mean
from typing import Final

from devnet.ports import pick_free
from tests.bench import http
from tests.bench.http_processes import server
from tests.bench.memory import resident
from tests.bench.provider import cpu_seconds
from tests.bench.row import Row, parts

LISTENERS: Final = int(os.environ.get("EVENT_LISTENERS", "10000"))
IDLE_SECONDS: Final = 20.0  # one heartbeat of each
PARTS: Final = 4  # of the listeners, opened in groups, and of the time
MEMORY: Final = 1024 * 1024 / 10_000  # KiB of a listener at most: a GiB for ten thousand
SHARE: Final = 5.0 / 10_000  # percent of a core


def _opened(port: int, n: int) -> socket.socket:
    """Open a stream of the n-th job of the database."""
    stream = socket.create_connection(("127.0.0.1", port))
    job_id = hashlib.sha256(b"%d" % n).hexdigest()
    stream.sendall(f"GET /v1/jobs/0x{job_id}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return stream


def rows() -> list[Row]:
    with ExitStack() as stack:
        url = stack.enter_context(http.filled_database())
        port = pick_free()
        pid = stack.enter_context(server("events", port, {"DATABASE_URL": url}))
        each = []  # KiB per listener, for each group
        for some in parts(range(1, LISTENERS + 1), PARTS):
            before = resident(pid)
            streams = [stack.enter_context(_opened(port, n)) for n in some]
            for stream in streams:
                stream.settimeout(60)
                told = b""
                while b"event: posted" not in told:
                    told += stream.recv(4096)
            each.append(1024 * (resident(pid) - before) / len(some))
        shares = []
        for _ in range(PARTS):
            began, spent = time.monotonic(), cpu_seconds(pid)
            time.sleep(IDLE_SECONDS / PARTS)
            shares.append(100 * (cpu_seconds(pid) - spent) / (time.monotonic() - began))
    most = SHARE * LISTENERS
    what = f"{LISTENERS:,} idle listeners"
    return [
        Row.of(f"memory of each of {what}", each, "KiB", f"{MEMORY:.0f} KiB", MEMORY, at_most=1, by=mean),
        Row.of(f"CPU of {what}", shares, "% of a core", f"{most:g} %", most, at_most=1, absolute="CPU", by=mean),
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
