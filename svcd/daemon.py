"""One logging policy: structured events on standard error, one per state change.

"error" means a fault of this daemon, never a client's or a server's. Keys, tokens, signatures, payloads and results are
not logged at any level.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio
from prometheus_client import generate_latest

from svcd.errors import Fatal
from svcd.health import Health
from svcd.metrics import REGISTRY

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def set_up_logging(level: str) -> None:
    """Readable lines on a terminal, JSON lines for a journal."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries log each request at INFO, and at DEBUG what holds headers: they are heard from WARNING on.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), stream=sys.stderr, force=True)


# sd_notify: telling systemd that the daemon is ready, stopping, alive. Does nothing outside systemd.


class Systemd:
    """The notify socket of this service, if any."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog = environ.get("WATCHDOG_USEC", "")
        # Half the time that systemd allows, as its manual advises.
        self.watchdog_seconds = int(watchdog) / 2_000_000 if watchdog.isdigit() and int(watchdog) else None

    def say(self, *lines: str) -> None:
        """Send e.g. `READY=1`, `STOPPING=1`, `STATUS=...`. A lost message is never worth a crash."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return

    async def keep_alive(self) -> None:
        """Feed the watchdog from inside the event loop: a loop that hangs stops feeding it."""
        if self.watchdog_seconds is None:
            return
        while True:
            self.say("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds)


# GET /metrics and GET /healthz, on a port of their own: for operators and their tools, not for the market.

log = structlog.get_logger(__name__)

_LONGEST_HEAD: Final = 8192
_PATIENCE: Final = 5.0
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


async def serve_metrics(
    host: str, port: int, health: Health, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled. Tells its port when it listens; Fatal when it cannot."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as taken:
        raise Fatal(f"metrics cannot be served on {host}, port {port}: {taken.strerror or taken}") from None
    bound = int(listeners[0].socket.getsockname()[1])
    log.info("metrics served", host=host, port=bound)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.move_on_after(_PATIENCE):
                try:
                    await _answer(stream, lambda path: _page(path, health))
                except trio.BrokenResourceError:
                    return

    task_status.started(bound)
    await trio.serve_listeners(answer, listeners)


def _page(path: bytes, health: Health) -> tuple[bytes, bytes]:
    match path:
        case b"/metrics":
            return b"200 OK", generate_latest(REGISTRY)
        case b"/healthz":
            return (b"200 OK", b"ok\n") if health.trouble is None else (b"503 Service Unavailable", b"unhealthy\n")
        case _:
            return b"404 Not Found", b"only /metrics and /healthz\n"


async def _answer(stream: trio.SocketStream, page: Callable[[bytes], tuple[bytes, bytes]]) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        received = await stream.receive_some(4096)
        head += received
        if not received or len(head) > _LONGEST_HEAD:
            return
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, body = page(path) if method in (b"GET", b"HEAD") else (b"405 Method Not Allowed", b"only GET\n")
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: " + _TEXT,
        b"content-length: " + str(len(body)).encode(),
        b"connection: close",
    ]
    await stream.send_all(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else body))
