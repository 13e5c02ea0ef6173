"""Server of `svc serve`: open the client, ledger and routes, then serve them with hypercorn until stopped."""

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

from common.daemon.supervision import TaskFunction
from common.refusal import Refused
from svc.client import Client
from svc.errors import OrderRefused
from svc.serve.attempts import PurchaseContext
from svc.serve.batch_routes import LocalBatchRoutes
from svc.serve.batches import LocalBatches
from svc.serve.budgets import DAY_S, Budgets
from svc.serve.files import LocalFileRoutes, LocalFiles
from svc.serve.http import Application, allowed_hosts
from svc.serve.keys import KEY_FILE_NAME, Keys
from svc.serve.ledger import Ledger
from svc.serve.listening import ListeningConfig
from svc.serve.page.access import (
    PageAccess,
    create_link,
    create_page_key,
    read_or_create_page_secret,
    remove_server_url,
    store_server_url,
)
from svc.serve.page.routes import PageRoutes
from svc.serve.prices import Prices
from svc.serve.purchases import AnswerPurchases
from svc.serve.routes import AnswerRoutes
from svc.serve.settings import HttpServerSettings, ServeSettings
from svc.settings import is_loopback

_BACKLOG: Final = 1024
_SHUTDOWN_TIMEOUT_S: Final = 3.0

Report = Callable[[str], object]


@attrs.frozen
class LocalServer:
    """Server that is ready to run. `page_url` is the address of its page."""

    application: Application
    context: PurchaseContext
    key_file: Path | None
    page_url: str

    def create_link(self) -> str:
        """Return a link that opens the page once, within five minutes."""
        return create_link(self.application.page_access.secret, self.page_url, self.context.clock())


@asynccontextmanager
async def open_server(
    client: Client, settings: ServeSettings, folder: Path, port: int, report: Report
) -> AsyncIterator[LocalServer]:
    """Open the client, the ledger and the background tasks, and resume purchases of the last run.

    Raises Refused and SvcError.
    """
    report = _ignore_write_errors(report)
    client.require_gateway()
    if client.signer is None:
        raise OrderRefused("svc serve needs a wallet to pay from: set SVC_WALLET_KEY_FILE", param="SVC_WALLET_KEY_FILE")
    await client.chain()  # check the market and set the clock before the first request
    await client.orders.account.result_keys()
    server, address = settings.server, page_url(settings.server, port)
    try:
        access = PageAccess(read_or_create_page_secret(folder), port, uses_https=server.tls_certificate is not None)
        own_key = create_page_key(access.secret)
        keys = Keys.load(settings, folder, [own_key])
        ledger = Ledger.open(folder)
        reader = Ledger.open_read_only(folder)
        (folder / "files").mkdir(mode=0o700, exist_ok=True)
        store_server_url(folder, address)
    except (OSError, sqlite3.Error) as error:
        raise Refused(f"cannot use the state folder {folder}: {error}") from None
    try:
        files = LocalFiles(folder / "files", ledger)
        prices = Prices(client, settings)
        async with anyio.create_task_group() as tasks:
            context = PurchaseContext(client, settings, ledger, Budgets([]), prices, tasks, report=report)
            spent = await ledger.list_jobs_since(context.clock() - DAY_S)
            context.budgets = Budgets.from_settings(settings, client.market_verifier.token(), spent)
            purchases, batches = AnswerPurchases(context), LocalBatches(context, files)
            batch_routes = LocalBatchRoutes(batches)
            await purchases.resume()
            await batches.resume(keys.find_by_name)
            loops: dict[str, TaskFunction] = {
                "prices": prices.refresh_repeatedly,
                "expired files": partial(files.remove_expired_repeatedly, report),
            }
            for name, loop in loops.items():
                tasks.start_soon(context.supervisor.run, name, loop)
            application = Application(
                [
                    *AnswerRoutes(purchases, server.progress_seconds).routes(),
                    *LocalFileRoutes(files).routes(),
                    *batch_routes.routes(),
                    *PageRoutes(purchases, batch_routes, access, reader, base_url(server, port)).routes(),
                ],
                keys,
                access,
                own_key,
                allowed_hosts(server.host, port, server.hosts),
                frozenset(server.origins),
                report,
                server.max_requests,
            )
            yield LocalServer(application, context, None if settings.keys else folder / KEY_FILE_NAME, address)
            tasks.cancel_scope.cancel()
    finally:
        remove_server_url(folder)
        reader.close()
        ledger.close()


def _ignore_write_errors(report: Report) -> Report:
    """Wrap `report` to ignore write errors. Standard error may be a file on a full disk."""

    def report_safely(line: str) -> None:
        with suppress(OSError):
            report(line)

    return report_safely


async def serve_until(
    served: LocalServer, listening: socket.socket, settings: ServeSettings, stop: Callable[[], Awaitable[None]]
) -> None:
    """Serve until `stop` returns, then give running requests a moment to finish.

    Unfinished purchases continue in the market. The next start resumes them.
    """

    async def wait_for_stop() -> None:
        await stop()
        served.context.is_stopping = True

    application: Any = served.application  # hypercorn declares other types for ASGI
    config = _build_config(listening, settings.server)

    async def run() -> None:
        await hypercorn.asyncio.serve(application, config, shutdown_trigger=wait_for_stop, mode="asgi")

    async with anyio.create_task_group() as tasks:  # a separate task, because hypercorn cancels its own task
        tasks.start_soon(run)


def _build_config(listening: socket.socket, server: HttpServerSettings) -> Config:
    config = ListeningConfig(listening)
    config.backlog = _BACKLOG
    config.alpn_protocols = ["http/1.1"]
    config.keep_alive_max_requests = 1_000_000
    config.graceful_timeout = _SHUTDOWN_TIMEOUT_S
    config.shutdown_timeout = _SHUTDOWN_TIMEOUT_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("svc.serve")  # replace hypercorn's own log handler
    config.certfile = server.tls_certificate
    config.keyfile = server.tls_key
    return config


def listening_socket(server: HttpServerSettings) -> socket.socket:
    """Bind and return the socket. Call this first, so that an occupied port is reported at once. Raises Refused."""
    try:
        ((family, _, _, _, address_info), *_) = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise Refused(f"cannot listen on server.host {server.host}: {error.strerror}", "server.host") from None
    try:
        if sys.platform == "win32":  # on Windows, reusing an address shares the port with other programs
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address_info)
        listening.listen(_BACKLOG)  # early clients wait in the backlog
    except OSError as error:
        listening.close()
        message = f"cannot listen on port {server.port} of {server.host}: {error.strerror}"
        raise Refused(f"{message}; choose another with --port, or 0 for any free port", "server.port") from None
    return listening


def check_tls(server: HttpServerSettings) -> None:
    """Check that the certificate and key can be loaded. Raises Refused."""
    if server.tls_certificate is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            server.tls_certificate, server.tls_key, password=""
        )
    except (OSError, ssl.SSLError) as error:
        files = f"{server.tls_certificate} and {server.tls_key}"
        message = f"server.tls_certificate and server.tls_key must be a PEM certificate and its key ({files}): {error}"
        raise Refused(message, "server.tls_certificate") from None


def base_url(server: HttpServerSettings, port: int) -> str:
    """Return the address that programs use as `base_url`."""
    scheme = "http" if server.tls_certificate is None else "https"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{port}/v1"


def page_url(server: HttpServerSettings, port: int) -> str:
    """Return the address of the page. For a server that listens on all addresses, return the loopback address."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104 - compared, not bound
    return base_url(attrs.evolve(server, host=local), port).removesuffix("v1")


def list_risks(settings: ServeSettings) -> list[str]:
    """Return a warning for each risky setting."""
    warnings, server = [], settings.server
    if not is_loopback(server.host):
        warnings.append(
            f"{server.host} is reachable from other machines: each key spends from the wallet up to its budgets"
        )
        if server.tls_certificate is None:
            warnings.append("plain http exposes keys, prompts and answers to the network")
    if server.origins:
        warnings.append(f"web pages of {', '.join(server.origins)} may call this server with a key")
    rules = {"all other models": settings.rule_for(None), **{name: settings.rule_for(name) for name in settings.models}}
    if open_models := [name for name, rule in rules.items() if rule.is_open]:
        warnings.append(f"the coordinator's operator can read prompts to {', '.join(open_models)} (open orders)")
    if settings.buying.hedge_seconds:
        warnings.append(
            f"a request without an answer after {settings.buying.hedge_seconds:g} s is bought again (hedge_seconds)"
        )
    return warnings
