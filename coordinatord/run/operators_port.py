"""Operators' port: /metrics and a web page of the metrics, served by hypercorn."""

import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import anyio
from hypercorn.asyncio import serve
from hypercorn.config import Config
from prometheus_client import make_asgi_app

from common.daemon.asgi import ASGIApp, Receive, Scope, Send
from common.daemon.operators_port import OperatorsApp, Page
from coordinatord.api.pages.files import operators_page
from coordinatord.base.metrics import REGISTRY

_IDLE_TIMEOUT_S: Final = 30.0  # longer than a busy event loop delays a scrape
_GRACE_S: Final = 1.0


def operators_app(refresh: Callable[[], None]) -> OperatorsApp:
    """`refresh` sets the gauges that are only computed when a request reads them."""
    files = operators_page()
    metrics: ASGIApp = make_asgi_app(REGISTRY)

    async def refreshed(scope: Scope, receive: Receive, send: Send) -> None:
        refresh()
        await metrics(scope, receive, send)

    def page(path: str) -> Page | None:
        file = files.get(path)
        return None if file is None else Page(200, file.body, file.headers)

    return OperatorsApp(refreshed, page)


async def serve_operators(app: OperatorsApp, bound: socket.socket) -> None:
    """Serve until cancelled. Stop hypercorn by its trigger, because it leaves connections open when cancelled."""
    config = Config()
    config.bind = [f"fd://{os.dup(bound.fileno())}"]  # hypercorn closes it
    config.keep_alive_timeout = _IDLE_TIMEOUT_S
    config.graceful_timeout = _GRACE_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")
    served: Any = app  # hypercorn's own ASGI types differ in name only
    stop = anyio.Event()

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            await serve(served, config, shutdown_trigger=stop.wait, mode="asgi")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shielded)
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()
