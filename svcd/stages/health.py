"""Health of the daemon, and the server of /healthz and /metrics."""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn

import attrs
import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from prometheus_client import make_asgi_app

from common.daemon.logs import log_task_failure
from common.daemon.operators_port import TEXT_HEADERS, OperatorsApp, OperatorsResponse
from common.daemon.supervision import Supervisor
from svcd.base import metrics
from svcd.base.end_reasons import CLAIM_HOLD_REASONS, ClaimHoldReason
from svcd.base.metrics import REGISTRY
from svcd.journal.journal import Journal

log = structlog.get_logger(__name__)

REASON_HEADER: Final = "x-svcd-reason"  # header with the reason of a 503 of /healthz
_WATCH_INTERVAL_S: Final = 5.0
_IDLE_TIMEOUT_S: Final = 30.0  # longer than a busy event loop can delay a scrape
_SHUTDOWN_GRACE_S: Final = 1.0
_MIN_SILENCE_S: Final = 60.0  # time without an answered poll before the daemon is unhealthy


@attrs.frozen(slots=True)
class ClaimHold:
    """Reason to withhold claims. `detail` has the problem and the remedy.

    The hold is for all models without `model`, and for all windows without `sla_secs`.
    """

    reason: ClaimHoldReason
    detail: str
    model: str | None = None
    sla_secs: int | None = None


@attrs.define(slots=True, eq=False)
class DaemonHealth:
    """Health of the daemon. `claim_holds` is set by the guard's first check."""

    journal: Journal
    supervisor: Supervisor = attrs.field(factory=lambda: Supervisor(metrics.count_task_failures, log_task_failure))
    claim_holds: tuple[ClaimHold, ...] | None = None
    _poll_answered_at: dict[str, float] = attrs.field(factory=dict)
    _ordered_at: dict[str, float] = attrs.field(factory=dict)
    _poll_intervals_s: dict[str, float] = attrs.field(factory=dict)

    def expect_polls(self, model: str, interval_s: float) -> None:
        """Expect a poll of the model every `interval_s` seconds."""
        self._poll_intervals_s[model] = interval_s
        self.record_poll_answer(model)

    def record_poll_answer(self, model: str) -> None:
        self._poll_answered_at[model] = trio.current_time()

    def record_orders(self, model: str) -> None:
        """Record that a poll returned orders, wanted or not."""
        self._ordered_at[model] = trio.current_time()

    def seconds_since_orders(self, model: str) -> float | None:
        """Return the seconds since a poll last returned orders, or None if no poll returned any."""
        at = self._ordered_at.get(model)
        return None if at is None else trio.current_time() - at

    def set_claim_holds(self, holds: Iterable[ClaimHold]) -> None:
        """Replace the reasons to withhold claims."""
        self.claim_holds = tuple(holds)
        reasons = {hold.reason for hold in self.claim_holds}
        for reason in CLAIM_HOLD_REASONS:
            metrics.claims_withheld.labels(reason).set(reason in reasons)

    def withholds(self, model: str, sla_secs: int | None = None) -> bool:
        """Return True while claims for the model, or for the model in this window, are withheld."""
        return self.claim_holds is None or any(
            hold.model in (None, model) and hold.sla_secs in (None, sla_secs) for hold in self.claim_holds
        )

    @property
    def is_only_daemon(self) -> bool:
        """Return True if the guard's check found this wallet in use by this daemon only."""
        return self.claim_holds is not None and all(hold.reason != "other_daemon" for hold in self.claim_holds)

    async def watch(self) -> NoReturn:
        """Log each change between healthy and unhealthy, with the reason."""
        logged = self.problem
        while True:
            await trio.sleep(_WATCH_INTERVAL_S)
            problem = self.problem
            if problem is not None and problem != logged:
                log.warning("unhealthy", reason=problem)
            elif problem != logged:
                log.info("healthy")
            logged = problem

    @property
    def problem(self) -> str | None:
        """Return the reason why the daemon is unhealthy, or None."""
        if not self.journal.is_working:
            return "the journal cannot be read or written"
        if self.supervisor.failing_task is not None:
            return f"the task {self.supervisor.failing_task} fails repeatedly; see the log"
        if self.claim_holds:
            return "; ".join(hold.detail for hold in self.claim_holds)
        now = trio.current_time()
        silent = [
            model
            for model, at in self._poll_answered_at.items()
            if now - at > max(_MIN_SILENCE_S, 3 * self._poll_intervals_s[model])
        ]
        if silent or not self._poll_answered_at:
            return f"no poll was answered lately: {', '.join(silent) or 'no model is polled yet'}"
        return None


async def no_page(_path: str, _host: str) -> OperatorsResponse | None:
    return None


async def serve_metrics(
    health: DaemonHealth,
    listening_socket: socket.socket,
    find_page: Callable[[str, str], Awaitable[OperatorsResponse | None]] = no_page,
) -> None:
    """Serve /metrics, /healthz and the pages of `find_page` until cancelled."""

    async def page(path: str, host: str) -> OperatorsResponse | None:
        if path != "/healthz":
            return await find_page(path, host)
        problem = health.problem
        if problem is None:
            return OperatorsResponse(200, b"ok\n")
        reason = problem.encode("ascii", "backslashreplace").replace(b"\r", b" ").replace(b"\n", b" ")
        return OperatorsResponse(503, b"unhealthy\n", (*TEXT_HEADERS, (REASON_HEADER.encode(), reason)))

    app: Any = OperatorsApp(make_asgi_app(REGISTRY), page)  # hypercorn declares other ASGI types
    config = Config()
    config.bind = [f"fd://{os.dup(listening_socket.fileno())}"]  # a duplicate, because hypercorn closes the descriptor
    config.keep_alive_timeout = _IDLE_TIMEOUT_S
    config.graceful_timeout = _SHUTDOWN_GRACE_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")
    await serve(app, config, shutdown_trigger=trio.sleep_forever, mode="asgi")
