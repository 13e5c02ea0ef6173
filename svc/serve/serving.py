"""Server of `svc serve`: everything opened in its order, served by hypercorn until told to stop."""

import logging
import socket
import sqlite3
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import hypercorn.asyncio
from hypercorn.config import Config

from common.daemon.supervision import Loop
from common.refusal import Refused
from svc.client import Client
from svc.errors import OrderRefused
from svc.serve.attempts import Trade
from svc.serve.batch_routes import LocalBatchRoutes
from svc.serve.batches import LocalBatches
from svc.serve.budgets import DAY, Budgets
from svc.serve.files import LocalFileRoutes, LocalFiles
from svc.serve.http import Application, names_of
from svc.serve.keys import KEY_FILE, Keys
from svc.serve.ledger import Ledger
from svc.serve.listening import ListeningConfig
from svc.serve.prices import Prices
from svc.serve.purchases import AnswerPurchases
from svc.serve.routes import AnswerRoutes
from svc.serve.settings import Server, ServeSettings, is_loopback

_BACKLOG: Final = 1024
_GRACE_SECONDS: Final = 3.0

Say = Callable[[str], object]


@attrs.frozen
class Served:
    """What is ready to be served. `trade` is told when it stops."""

    application: Application
    trade: Trade
    key_file: Path | None


@asynccontextmanager
async def opened(client: Client, settings: ServeSettings, folder: Path, port: int, say: Say) -> AsyncIterator[Served]:
    """Everything that answers need, with what was under way when it ended last taken up again. Raises Refused,
    SvcError."""
    say = _unless_disk_is_full(say)
    client.require_readable()
    if client.signer is None:
        raise OrderRefused("svc serve pays from a wallet: set SVC_WALLET_KEY_FILE", param="SVC_WALLET_KEY_FILE")
    await client.chain()  # the market is checked, and the clock set, before anybody asks
    await client.orders.account.result_keys()
    try:
        keys = Keys.of(settings, folder)
        ledger = Ledger.open(folder)
        (folder / "files").mkdir(mode=0o700, exist_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise Refused(f"the state folder {folder} cannot be used: {error}") from None
    try:
        files = LocalFiles(folder / "files", ledger)
        prices = Prices(client, settings)
        async with anyio.create_task_group() as tasks:
            trade = Trade(client, settings, ledger, Budgets([]), prices, tasks, say=say)
            spent = await ledger.since(trade.clock() - DAY)
            trade.budgets = Budgets.of(settings, client.vouching.token(), spent)
            buyer, batches = AnswerPurchases(trade), LocalBatches(trade, files)
            await buyer.resume()
            await batches.resume(keys.named)
            loops: dict[str, Loop] = {"prices": prices.keep_warm, "expired files": partial(files.keep_swept, say)}
            for name, loop in loops.items():
                tasks.start_soon(trade.supervisor.run, name, loop)
            hosts = names_of(settings.server.host, port, settings.server.hosts)
            yield Served(_application(buyer, batches, keys, hosts), trade, None if settings.keys else folder / KEY_FILE)
            tasks.cancel_scope.cancel()
    finally:
        ledger.close()


def _unless_disk_is_full(say: Say) -> Say:
    """Return `say` that drops what cannot be written: standard error may be a file on a full disk."""

    def said(line: str) -> None:
        with suppress(OSError):
            say(line)

    return said


def _application(buyer: AnswerPurchases, batches: LocalBatches, keys: Keys, hosts: frozenset[str]) -> Application:
    server, say = buyer.trade.settings.server, buyer.trade.say
    answers = AnswerRoutes(buyer, server.progress_seconds)
    routes = [*answers.routes(), *LocalFileRoutes(batches.files).routes(), *LocalBatchRoutes(batches).routes()]
    return Application(routes, keys, hosts, frozenset(server.origins), say, server.concurrent)


async def serve_until(
    served: Served, listening: socket.socket, settings: ServeSettings, stop: Callable[[], Awaitable[None]]
) -> None:
    """Returns when `stop` has returned and the answers then on their way had a moment to end. What is bought meanwhile
    goes on in the market and is taken up at the next start."""

    async def stopping() -> None:
        await stop()
        served.trade.stopping = True

    application: Any = served.application  # hypercorn has its own types of the same shapes
    config = _config(listening, settings.server)

    async def run() -> None:
        await hypercorn.asyncio.serve(application, config, shutdown_trigger=stopping, mode="asgi")

    async with anyio.create_task_group() as tasks:  # in a task of its own, which hypercorn cancels in its own way
        tasks.start_soon(run)


def _config(listening: socket.socket, server: Server) -> Config:
    config = ListeningConfig(listening)
    config.backlog = _BACKLOG
    config.alpn_protocols = ["http/1.1"]
    config.keep_alive_max_requests = 1_000_000
    config.graceful_timeout = _GRACE_SECONDS
    config.shutdown_timeout = _GRACE_SECONDS
    config.include_server_header = False
    config.errorlog = logging.getLogger("svc.serve")  # its own handler would write beside our words
    config.certfile = server.tls_certificate
    config.keyfile = server.tls_key
    return config


def listening_socket(server: Server) -> socket.socket:
    """The socket, bound: a port that is taken is known before anything else starts. Raises Refused."""
    try:
        ((family, _, _, _, place), *_) = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise Refused(f"server.host {server.host}: {error.strerror}", "server.host") from None
    try:
        if sys.platform == "win32":  # where to reuse an address is to share it with any other program
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(_BACKLOG)  # whoever comes before it is served waits for a moment
    except OSError as error:
        listening.close()
        message = f"server.port {server.port} of {server.host} cannot be listened on: {error.strerror}"
        raise Refused(f"{message}; --port names another, 0 any free one", "server.port") from None
    return listening


def check_tls(server: Server) -> None:
    """Raises Refused for files that TLS cannot be served with, before anything else starts."""
    if server.tls_certificate is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            server.tls_certificate, server.tls_key, password=""
        )
    except (OSError, ssl.SSLError) as error:
        files = f"{server.tls_certificate} and {server.tls_key}"
        message = f"server.tls_certificate and server.tls_key must be a PEM certificate and its key: {files}: {error}"
        raise Refused(message, "server.tls_certificate") from None


def address(server: Server, port: int) -> str:
    """What programs are given as `base_url`."""
    scheme = "http" if server.tls_certificate is None else "https"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{port}/v1"


def risks(settings: ServeSettings) -> list[str]:
    """What the settings risk, for whoever starts it."""
    told, server = [], settings.server
    if not is_loopback(server.host):
        told.append(f"{server.host} is reached by others: each key spends from the wallet up to its budgets")
        if server.tls_certificate is None:
            told.append("over plain http whoever is on the way reads keys, prompts and answers")
    if server.origins:
        told.append(f"pages of {', '.join(server.origins)} may call it with a key")
    rules = {"buying": settings.rule(None), **{name: settings.rule(name) for name in settings.models}}
    if opened_to_all := [name for name, rule in rules.items() if rule.is_open]:
        told.append(f"whoever runs the coordinator can read what is asked of {', '.join(opened_to_all)} (open orders)")
    if settings.buying.hedge_seconds:
        told.append(f"a request without an answer after {settings.buying.hedge_seconds:g} s is bought twice (hedging)")
    return told
