"""A server that answers only with decompression bombs: two kilobytes of doubly gzipped data that decompress to 512 MiB.

    with bomb_server() as server:        # server.url; requests are recorded in server.heads
        with flat_memory():              # fails if peak memory in the block grows by more than a few MiB
            ...

The server runs in separate threads, so clients of any event loop can reach it.
"""

import gzip
import socketserver
import ssl
import threading
import tracemalloc
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

import attrs

from devnet.ports import LOOPBACK

UNFOLDED: Final = 512 << 20
FLAT: Final = 24 << 20  # limit of an honest client's memory per response
ENCODING: Final = "gzip, gzip"


@attrs.define
class BombServer:
    """`redirects` is the number of responses that redirect to this server, with a bomb as body. `plain` is sent without
    an encoding instead of the bomb."""

    url: str
    status: int = 200
    redirects: int = 0
    plain: bytes | None = None
    heads: deque[str] = attrs.field(factory=lambda: deque(maxlen=10_000))

    def answer(self, head: str) -> bytes:
        self.heads.append(head.lower())
        if self.redirects:
            self.redirects -= 1
            return _message(302, _bomb(), f"location: {self.url}/next\r\ncontent-encoding: {ENCODING}\r\n")
        if self.plain is not None:
            return _message(self.status, self.plain)
        return _message(self.status, _bomb(), f"content-encoding: {ENCODING}\r\n")

    def asked_for_no_encoding(self) -> bool:
        """Return whether every request refused encodings."""
        return bool(self.heads) and all("\r\naccept-encoding: identity\r\n" in head for head in self.heads)


@contextmanager
def bomb_server(status: int = 200, tls: ssl.SSLContext | None = None) -> Iterator[BombServer]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while line := self.rfile.readline():
                head += line
                if line == b"\r\n":
                    break
            if not head:
                return
            text = head.decode("latin-1")
            for header in text.lower().split("\r\n"):
                if header.startswith("content-length:"):
                    self.rfile.read(int(header.partition(":")[2]))
            with suppress(ConnectionError):  # the client rejected the response at its head
                self.wfile.write(bombs.answer(text))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    _bomb()
    with Server((LOOPBACK, 0), Handler) as server:
        scheme = "http" if tls is None else "https"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        bombs = BombServer(f"{scheme}://{LOOPBACK}:{server.server_address[1]}", status)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield bombs
        finally:
            server.shutdown()
            serving.join()


@contextmanager
def flat_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < FLAT, f"{peak >> 20} MiB were taken at once"


@cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    inner = b"".join(packer.compress(bytes(1 << 20)) for _ in range(UNFOLDED >> 20)) + packer.flush()
    return gzip.compress(inner, 9)


def _message(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
