"""Circuit breaker that stops svcd from claiming jobs for a failing backend.

closed      jobs are claimed; the third fault in a row opens the breaker
open        no job is claimed; the backend is probed after a backoff, which doubles with each probe
half-open   a probe succeeded: jobs are claimed again; one fault opens the breaker, one success closes it

A client's error (`WorkFailed.backend_fault` is False) counts neither as a fault nor as a success.
"""

from typing import Final

import attrs
import structlog
import trio

from svcd.backends.backend import Backend

log = structlog.get_logger(__name__)

FAULTS_TO_OPEN: Final = 3
_FIRST_BACKOFF_S: Final = 5.0
_MAX_BACKOFF_S: Final = 300.0
_PROBE_TIMEOUT_S: Final = 15.0


@attrs.define(slots=True)
class Breaker:
    """State of one backend's circuit, without clock or I/O. An open circuit still records outcomes of earlier jobs."""

    _faults_in_a_row: int = 0
    _is_open: bool = False
    _backoff_s: float = _FIRST_BACKOFF_S
    _opened_event: trio.Event = attrs.field(factory=trio.Event, repr=False)
    _closed_event: trio.Event = attrs.field(factory=trio.Event, repr=False)

    @property
    def is_open(self) -> bool:
        """Return True while no jobs are claimed."""
        return self._is_open

    @property
    def backoff_s(self) -> float:
        """Return the seconds until the next probe of the backend."""
        return self._backoff_s

    def record_success(self) -> None:
        self._faults_in_a_row = 0
        if not self._is_open:
            self._backoff_s = _FIRST_BACKOFF_S

    def record_failure(self, backend_fault: bool) -> None:
        if not backend_fault:
            return
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= FAULTS_TO_OPEN and not self._is_open:
            self._is_open = True
            self._closed_event = trio.Event()
            self._opened_event.set()

    def record_probe(self, is_up: bool) -> None:
        """Record a probe's result while the circuit is open.

        The backoff also grows after successful probes, because a server may pass its health check and fail every job.
        """
        self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)
        if is_up:
            self._is_open = False
            self._faults_in_a_row = FAULTS_TO_OPEN - 1
            self._opened_event = trio.Event()
            self._closed_event.set()

    async def wait_open(self) -> None:
        await self._opened_event.wait()

    async def wait_closed(self) -> None:
        while self._is_open:
            await self._closed_event.wait()


async def probe_while_open(breaker: Breaker, backend: Backend, model: str) -> None:
    """Probe the backend while the breaker is open, and close the breaker after a successful probe."""
    while True:
        await breaker.wait_open()
        log.warning("circuit opened: no claims", model=model, looks_again_in=breaker.backoff_s)
        while breaker.is_open:
            await trio.sleep(breaker.backoff_s)
            is_up = False
            with trio.move_on_after(_PROBE_TIMEOUT_S):
                is_up = await backend.is_up()
            breaker.record_probe(is_up)
        log.info("circuit closed: the backend is up", model=model)
