"""A load client: some connections, one request in flight on each, in a separate process.

It reads lines of `host ports path requests connections [bearer]` from standard input, and prints the number of
responses. Ports are comma-separated, and each has this many connections. `{id}` in a path or bearer is replaced by the
sha256 of a different number in each request. The client only looks for the end of each response, so it uses a fraction
of any server's CPU.
"""

import asyncio
import hashlib
import itertools
import sys
from functools import cache
from typing import Final, cast

import uvloop

IDS: Final = 6_000  # per portion, which reads each id once


class _Connection(asyncio.Protocol):
    def __init__(self, run: "_Run") -> None:
        self._run = run
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        if _is_whole(head.lower(), rest):
            if not head.startswith(b"HTTP/1.1 200"):
                self._run.failed.append(head.partition(b"\r\n")[0])
            self._buffer = b""
            self._run.answered += 1
            self._ask()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._run.done.is_set():
            self._run.failed.append(b"connection lost")
            self._run.done.set()

    def _ask(self) -> None:
        assert self._transport is not None
        if self._run.asked < self._run.wanted:
            self._run.asked += 1
            self._transport.write(next(self._run.requests))
        elif self._run.answered >= self._run.wanted:
            self._run.done.set()


def _is_whole(head: bytes, body: bytes) -> bool:
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length) if length else body.endswith(b"0\r\n\r\n")  # the last chunk


class _Run:
    def __init__(self, wanted: int, requests: list[bytes]) -> None:
        self.wanted, self.requests = wanted, itertools.cycle(requests)
        self.asked = self.answered = 0
        self.failed: list[bytes] = []
        self.done = asyncio.Event()


@cache
def _requests(host: str, path: str, *bearer: str) -> list[bytes]:
    head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\n"
    head += "".join(f"authorization: Bearer {token}\r\n" for token in bearer)
    ids = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(1, IDS + 1)]
    return [f"{head}\r\n".replace("{id}", one).encode() for one in ids]


async def _load(host: str, ports: list[int], path: str, requests: int, connections: int, *bearer: str) -> int:
    run = _Run(requests, _requests(host, path, *bearer))
    loop = asyncio.get_running_loop()
    turns = [port for port in ports for _ in range(connections)]
    transports = [(await loop.create_connection(lambda: _Connection(run), host, port))[0] for port in turns]
    await run.done.wait()
    for transport in transports:
        transport.close()
    if run.failed:
        raise RuntimeError(f"{len(run.failed)} failures, the first: {run.failed[0]!r}")
    return run.answered


def main() -> None:
    for line in sys.stdin:
        host, ports, path, requests, connections, *bearer = line.split()
        numbers = [int(port) for port in ports.split(",")]
        print(uvloop.run(_load(host, numbers, path, int(requests), int(connections), *bearer)), flush=True)


if __name__ == "__main__":
    main()
