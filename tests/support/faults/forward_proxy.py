"""HTTP proxy for HTTP_PROXY and HTTPS_PROXY. It forwards requests for http addresses, and tunnels others by CONNECT.

    with forward_proxy() as proxy:       # proxy.url; requested addresses are in proxy.targets

The proxy runs in separate threads, so clients of any event loop can reach it. Every name resolves to this machine.
"""

import selectors
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import attrs

from devnet.ports import LOOPBACK


@attrs.define
class ForwardProxy:
    """`targets` lists method and target of each request, in order."""

    url: str
    targets: list[str] = attrs.field(factory=list)


@contextmanager
def forward_proxy() -> Iterator[ForwardProxy]:
    class Handler(socketserver.StreamRequestHandler):
        rbufsize = 0

        def handle(self) -> None:
            with suppress(OSError):
                _forward(self.connection, proxy)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server((LOOPBACK, 0), Handler) as server:
        proxy = ForwardProxy(f"http://{LOOPBACK}:{server.server_address[1]}")
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            serving.join()


def _forward(client: socket.socket, proxy: ForwardProxy) -> None:
    """Serve one connection. All its requests go to the server of the first."""
    head = b""
    while b"\r\n\r\n" not in head:
        if not (received := client.recv(65_536)):
            return
        head += received
    line, _, rest = head.partition(b"\r\n")
    method, target, version = line.split(b" ")
    proxy.targets.append(f"{method.decode()} {target.decode()}")
    if method == b"CONNECT":
        port = int(target.rpartition(b":")[2])
        first = b""
    else:
        url = urlsplit(target.decode())
        port = url.port or 80
        path = target.decode().removeprefix(f"http://{url.netloc}") or "/"
        first = b" ".join((method, path.encode(), version)) + b"\r\n" + rest
    with socket.create_connection((LOOPBACK, port)) as server:
        if first:
            server.sendall(first)
        else:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        _splice(client, server)


def _splice(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as ready:
        ready.register(one, selectors.EVENT_READ, other)
        ready.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in ready.select():
                received = key.fileobj.recv(65_536)  # type: ignore[union-attr] # a socket
                if not received:
                    return
                key.data.sendall(received)
