"""Health of the daemon, and the server of /healthz and /metrics."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Final, NoReturn

import attrs
import structlog
import trio
from prometheus_client import generate_latest

from common.daemon.logs import log_task_failure
from common.daemon.metrics_server import TEXT, PageAnswer, PageServer, open_pages
from common.daemon.supervision import Supervisor
from svcd.base import metrics
from svcd.base.errors import HOLD_REASONS, HoldReason
from svcd.base.metrics import REGISTRY
from svcd.journal.journal import Journal

log = structlog.get_logger(__name__)

REASON_HEADER: Final = "x-svcd-reason"  # of a 503 of /healthz, whose body the specification fixes
_LOOKED_EVERY: Final = 5.0
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


def open_metrics(host: str, port: int, health: DaemonHealth) -> AbstractAsyncContextManager[PageServer]:
    """Bind the port of /metrics and /healthz. Fatal when it is taken. A 503 carries the reason in a header."""

    def page(method: bytes, path: bytes) -> PageAnswer:
        if method not in (b"GET", b"HEAD"):
            return PageAnswer(b"405 Method Not Allowed", b"only GET\n")
        match path:
            case b"/metrics":
                return PageAnswer(b"200 OK", generate_latest(REGISTRY))
            case b"/healthz":
                problem = health.problem
                if problem is None:
                    return PageAnswer(b"200 OK", b"ok\n")
                reason = problem.encode("ascii", "backslashreplace").replace(b"\r", b" ").replace(b"\n", b" ")
                return PageAnswer(b"503 Service Unavailable", b"unhealthy\n", (*TEXT, (REASON_HEADER.encode(), reason)))
            case _:
                return PageAnswer(b"404 Not Found", b"only /metrics and /healthz\n")

    return open_pages(host, port, page, "metrics.host, metrics.port")
