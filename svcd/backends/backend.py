"""Backend interface: one run of a model, its retries, and the circuit breaker before it."""

import random
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs
import structlog
import trio

from svcd.base import metrics
from svcd.base.errors import WorkFailed
from svcd.journal.held_job import ModelWork, WorkOutput


class Backend(Protocol):
    """One model's way to its outputs. Its slots are counted above it: `run` is called at most that often at a time.

    `run` returns in time or raises `WorkFailed`:

    - `backend_error`: refused, and no attempt would help; `backend_fault` says whose fault it is
    - `backend_exhausted`: every attempt failed
    - `deadline_wait`: the next wait or attempt would end past `work.deadline`
    - `media_input_refused`: the request does not fit the backend or what was paid

    It may be cancelled at any point and then leaves nothing running.
    """

    async def run(self, work: ModelWork) -> WorkOutput: ...

    async def is_up(self) -> bool:
        """A cheap look whether jobs would be taken: what opens the circuit again after a breaker closed it."""
        ...

    async def unknown_name(self, model: str) -> str | None:
        """Why the server would refuse the name under which it is asked for this model of the market; None where it
        knows the name, or says nothing about names."""
        ...


class LoadProbe(Protocol):
    """How busy a backend is, seen from outside svcd (others may use it too)."""

    async def read(self) -> float | None:
        """0 (idle) to 1 (full); None when there is no reading (counted, and the load is taken from our own slots)."""
        ...


# Server-sent events, read from bytes as they come.
#
# Lines end at CR, LF or CRLF only. (Splitting decoded text at whatever Unicode calls a line end would cut JSON strings
# apart that hold U+2028.)

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@attrs.define(slots=True)
class EventReader:
    _rest: bytearray = attrs.field(factory=bytearray)
    _searched: int = 0  # so much of `_rest` holds no line end: an image of megabytes is one line
    _data: list[bytes] = attrs.field(factory=list)

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that `piece` completes. Names, ids and comments are of no use here: the servers that
        name their events name them in the data too."""
        self._rest += piece
        # A CR at the very end may be the first half of a CRLF: it waits for what follows.
        end = len(self._rest) - 1 if self._rest.endswith(b"\r") else len(self._rest)
        events, begin = [], 0
        for line_end in _LINE_END.finditer(self._rest, self._searched, end):
            event = self._line(bytes(self._rest[begin : line_end.start()]))
            begin = line_end.end()
            if event is not None:
                events.append(event)
        del self._rest[:begin]
        self._searched = end - begin
        return events

    def _line(self, line: bytes) -> bytes | None:
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        return event or None


# Trying again, with waits that grow, until it works, or helps no more, or the job's time is up.

# Jobs that fail together would otherwise come back together. It guards nothing; the system's source is merely at hand.
_JITTER: Final = random.SystemRandom()
_JITTER_SHARE: Final = 0.25


@attrs.frozen(slots=True)
class TryAgain(Exception):
    """An attempt failed where another may succeed. `after`: seconds that the server asked to be left alone."""

    detail: str
    after: float | None = None

    def __str__(self) -> str:
        return self.detail


@attrs.define(slots=True)
class Signs:
    """An attempt that hears from its backend says so here: silence until the deadline is a fault, long work is none."""

    of_life: bool = False


@attrs.frozen(slots=True)
class Attempts:
    most: int
    backoff_seconds: float
    longest_backoff_seconds: float

    async def run(self, work: ModelWork, attempt: Callable[[Signs], Awaitable[WorkOutput]]) -> WorkOutput:
        """The first output. `WorkFailed` of an attempt ends it at once; `TryAgain` is followed by a wait and another
        attempt while there is one left (`backend_exhausted`) and time for it (`deadline_wait`)."""
        error: TryAgain | None = None
        signs = Signs()
        for number in range(1, self.most + 1):
            with trio.move_on_at(work.deadline):
                try:
                    return await attempt(signs)
                except TryAgain as failed:
                    error = failed
                    if number == self.most:
                        break
                    wait = self._wait(number, failed)
            if trio.current_time() >= work.deadline:
                # An attempt may be merely long. After a failure, or without any sign, the backend is not well.
                fault = error is not None or not signs.of_life
                raise WorkFailed("deadline_wait", f"attempt {number} was under way at the deadline", fault)
            if trio.current_time() + wait >= work.deadline:
                raise WorkFailed("deadline_wait", f"{error}; {wait:.1f} s more would end past the deadline", True)
            metrics.backend_retries.labels(work.model).inc()
            await trio.sleep(wait)
        raise WorkFailed("backend_exhausted", f"{self.most} attempts, the last one: {error}", True)

    def _wait(self, number: int, failed: TryAgain) -> float:
        if failed.after is not None:
            return failed.after
        wait = min(self.backoff_seconds * float(2 ** (number - 1)), self.longest_backoff_seconds)
        return wait * (1 + _JITTER.random() * _JITTER_SHARE)


# Keeping jobs away from a backend that fails them.
#
#     closed   jobs are claimed; the third fault in a row opens it
#     open     none are; after a back-off the backend is looked at, and each look that finds nothing doubles the back-
# off
#     tried    a look was good: jobs are claimed again, but one fault is enough to open it; a success closes it
#
# What a client did wrong (`WorkFailed.backend_fault` is False) is no fault, and no success either.

log = structlog.get_logger(__name__)

FAULTS_TO_OPEN: Final = 3
_FIRST_BACKOFF: Final = 5.0
_LONGEST_BACKOFF: Final = 300.0
_LONGEST_LOOK: Final = 15.0


@attrs.define(slots=True)
class Breaker:
    """The state alone: no clock, no I/O. Jobs that were claimed before it opened still report how they ended."""

    _faults: int = 0
    _is_open: bool = False
    _backoff: float = _FIRST_BACKOFF
    _opened: trio.Event = attrs.field(factory=trio.Event, repr=False)

    @property
    def is_open(self) -> bool:
        """While it is, `free` is 0."""
        return self._is_open

    @property
    def backoff(self) -> float:
        """Seconds until the next look at the backend."""
        return self._backoff

    def succeeded(self) -> None:
        self._faults = 0
        if not self._is_open:
            self._backoff = _FIRST_BACKOFF

    def failed(self, backend_fault: bool) -> None:
        if not backend_fault:
            return
        self._faults += 1
        if self._faults >= FAULTS_TO_OPEN and not self._is_open:
            self._is_open = True
            self._opened.set()

    def looked(self, up: bool) -> None:
        """The result of a look while it is open. The back-off grows with good looks too: a server that answers its
        health check and fails every job is tried ever more rarely."""
        self._backoff = min(self._backoff * 2, _LONGEST_BACKOFF)
        if up:
            self._is_open = False
            self._faults = FAULTS_TO_OPEN - 1
            self._opened = trio.Event()

    async def wait_open(self) -> None:
        await self._opened.wait()


async def watch(breaker: Breaker, backend: Backend, model: str) -> None:
    """Until cancelled: looks at the backend whenever the breaker is open, and closes it after a good look."""
    while True:
        await breaker.wait_open()
        log.warning("circuit opened: no claims", model=model, looks_again_in=breaker.backoff)
        while breaker.is_open:
            await trio.sleep(breaker.backoff)
            up = False
            with trio.move_on_after(_LONGEST_LOOK):
                up = await backend.is_up()
            breaker.looked(up)
        log.info("circuit closed: the backend is up", model=model)
