"""Health of the daemon, and the server of /healthz and /metrics."""

import logging
import os
import socket
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import attrs
import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from prometheus_client import make_asgi_app

from common.daemon.logs import log_task_failure
from common.daemon.operators_port import TEXT, OperatorsApp, Page
from common.daemon.supervision import Supervisor
from svcd.base import metrics
from svcd.base.end_reasons import HOLD_REASONS, HoldReason
from svcd.base.metrics import REGISTRY
from svcd.journal.journal import Journal

log = structlog.get_logger(__name__)

REASON_HEADER: Final = "x-svcd-reason"  # of a 503 of /healthz, whose body the specification fixes
_LOOKED_EVERY: Final = 5.0
_IDLE_TIMEOUT_S: Final = 30.0  # longer than a busy event loop makes a scrape wait
_GRACE_S: Final = 1.0
_SILENCE: Final = 60.0  # seconds without an answered poll that are no problem yet; more where polls are rarer


@attrs.frozen(slots=True)
class Hold:
    """Something for which a job that is claimed now would cost reputation, and what to do about it, in one line.

    `model` None: of whatever model; `sla_secs` None: for whatever window.
    """

    reason: HoldReason
    detail: str
    model: str | None = None
    sla_secs: int | None = None


@attrs.define(slots=True, eq=False)
class DaemonHealth:
    """`holds`: for what nothing is claimed now; None until it was looked at for the first time."""

    journal: Journal
    supervisor: Supervisor = attrs.field(factory=lambda: Supervisor(metrics.count_task_failures, log_task_failure))
    holds: tuple[Hold, ...] | None = None
    _heard: dict[str, float] = attrs.field(factory=dict)
    _pauses: dict[str, float] = attrs.field(factory=dict)

    def expect(self, model: str, pause: float) -> None:
        """From now on this one is to be polled, with so many seconds in between."""
        self._pauses[model] = pause
        self.heard(model)

    def heard(self, model: str) -> None:
        self._heard[model] = trio.current_time()

    def hold(self, holds: Iterable[Hold]) -> None:
        """These, and no others."""
        self.holds = tuple(holds)
        reasons = {hold.reason for hold in self.holds}
        for reason in HOLD_REASONS:
            metrics.claims_withheld.labels(reason).set(reason in reasons)

    def withholds(self, model: str, sla_secs: int | None = None) -> bool:
        """True while no job of this model is to be claimed; with a window, none for that."""
        return self.holds is None or any(
            hold.model in (None, model) and hold.sla_secs in (None, sla_secs) for hold in self.holds
        )

    @property
    def is_alone(self) -> bool:
        """True once the guard has looked, and while it knows of no other daemon on this wallet."""
        return self.holds is not None and all(hold.reason != "other_daemon" for hold in self.holds)

    async def watch(self) -> NoReturn:
        """Tells the log when it turns, either way: /healthz says no reasons."""
        told = self.problem
        while True:
            await trio.sleep(_LOOKED_EVERY)
            problem = self.problem
            if problem is not None and problem != told:
                log.warning("unhealthy", reason=problem)
            elif problem != told:
                log.info("healthy")
            told = problem

    @property
    def problem(self) -> str | None:
        """None when all is well."""
        if not self.journal.works:
            return "the journal cannot be read or written"
        if self.supervisor.failing is not None:
            return f"the task {self.supervisor.failing} fails again and again; the log has its errors"
        if self.holds:
            return "; ".join(hold.detail for hold in self.holds)
        now = trio.current_time()
        silent = [model for model, at in self._heard.items() if now - at > max(_SILENCE, 3 * self._pauses[model])]
        if silent or not self._heard:
            return f"no poll was answered lately: {', '.join(silent) or 'none yet'}"
        return None


async def serve_metrics(health: DaemonHealth, bound: socket.socket) -> None:
    """Serve /metrics and /healthz until cancelled. A 503 carries the reason in a header."""

    def page(path: str) -> Page | None:
        if path != "/healthz":
            return None
        problem = health.problem
        if problem is None:
            return Page(200, b"ok\n")
        reason = problem.encode("ascii", "backslashreplace").replace(b"\r", b" ").replace(b"\n", b" ")
        return Page(503, b"unhealthy\n", (*TEXT, (REASON_HEADER.encode(), reason)))

    app: Any = OperatorsApp(make_asgi_app(REGISTRY), page)  # hypercorn has its own types of the same shapes
    config = Config()
    config.bind = [f"fd://{os.dup(bound.fileno())}"]  # hypercorn closes it
    config.keep_alive_timeout = _IDLE_TIMEOUT_S
    config.graceful_timeout = _GRACE_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")
    await serve(app, config, shutdown_trigger=trio.sleep_forever, mode="asgi")
