"""Serve the operators' port with hypercorn: /metrics, and a web page with the last hour of the metrics."""

import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

import anyio
import attrs
from hypercorn.asyncio import serve
from hypercorn.config import Config
from prometheus_client import make_asgi_app

from common.daemon.asgi import ASGIApp, Receive, Scope, Send
from common.daemon.operators_port import OperatorsApp, OperatorsResponse
from coordinatord.api.pages.files import operators_page_files
from coordinatord.base.metrics import REGISTRY

_IDLE_TIMEOUT_S: Final = 30.0  # longer than a busy event loop can delay a scrape
_SHUTDOWN_GRACE_S: Final = 1.0
_SAMPLE_INTERVAL_S: Final = 15.0
_MAX_SAMPLES: Final = 240  # the samples of an hour
_JSON_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
# Metrics by their name on the page. The page shows the sum over a metric's labels.
_SERIES_BY_NAME: Final = {
    "queue": "coordinatord_relay_queue_depth",
    "relays": "coordinatord_relay_outcomes_total",
    "gas_price": "coordinatord_relay_gas_price_wei",
    "lag": "coordinatord_index_lag_blocks",
}


@attrs.frozen(slots=True)
class MetricsHistory:
    """Samples of a few metrics of this process in the last hour, in memory. A missing metric is None in its sample."""

    clock: Callable[[], float] = time.time
    _samples: deque[dict[str, float | None]] = attrs.field(factory=lambda: deque(maxlen=_MAX_SAMPLES))

    async def run(self) -> NoReturn:
        while True:
            self.record_sample()
            await anyio.sleep(_SAMPLE_INTERVAL_S)

    def record_sample(self) -> None:
        values: dict[str, float | None] = {"at": self.clock(), **dict.fromkeys(_SERIES_BY_NAME)}
        chosen = REGISTRY.restricted_registry(_SERIES_BY_NAME.values())
        found = [sample for family in chosen.collect() for sample in family.samples]
        for name, series in _SERIES_BY_NAME.items():
            parts = [sample.value for sample in found if sample.name == series]
            values[name] = sum(parts) if parts else None
        self._samples.append(values)

    def as_json(self) -> bytes:
        return json.dumps({"interval_secs": _SAMPLE_INTERVAL_S, "samples": list(self._samples)}).encode()


def operators_app(refresh: Callable[[], None], history: MetricsHistory) -> OperatorsApp:
    """Return the application of the operators' port. `refresh` updates gauges before each read of the metrics."""
    files = operators_page_files()
    metrics: ASGIApp = make_asgi_app(REGISTRY)

    async def serve_fresh_metrics(scope: Scope, receive: Receive, send: Send) -> None:
        refresh()
        await metrics(scope, receive, send)

    async def find_page(path: str, _host: str) -> OperatorsResponse | None:
        if path == "/history.json":
            return OperatorsResponse(200, history.as_json(), _JSON_HEADERS)
        file = files.get(path)
        return None if file is None else OperatorsResponse(200, file.body, file.headers)

    return OperatorsApp(serve_fresh_metrics, find_page)


async def serve_operators(app: OperatorsApp, listening: socket.socket) -> None:
    """Serve until cancelled. Then stop hypercorn through its trigger, because a cancelled hypercorn leaves
    connections open."""
    config = Config()
    config.bind = [f"fd://{os.dup(listening.fileno())}"]  # a duplicate, because hypercorn closes the socket
    config.keep_alive_timeout = _IDLE_TIMEOUT_S
    config.graceful_timeout = _SHUTDOWN_GRACE_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")
    served: Any = app  # hypercorn's own ASGI types differ in name only
    stop = anyio.Event()

    async def serve_shielded() -> None:
        with anyio.CancelScope(shield=True):
            await serve(served, config, shutdown_trigger=stop.wait, mode="asgi")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_shielded)
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()
