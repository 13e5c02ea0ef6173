"""What svcd asks of a backend, whatever it is made of."""

from typing import Protocol

from svcd.work import Output, Work


class Backend(Protocol):
    """One model's way to its outputs. Its slots are counted above it: `run` is called at most that often at a time.

    `run` returns in time or raises `JobFailed`:

    - `backend_error`: refused, and no attempt would help; `backend_fault` says whose fault it is
    - `backend_exhausted`: every attempt failed
    - `deadline_wait`: the next wait or attempt would end past `work.deadline`
    - `media_input_refused`: the request does not fit the backend or what was paid

    It may be cancelled at any point and then leaves nothing running.
    """

    async def run(self, work: Work) -> Output: ...

    async def is_up(self) -> bool:
        """A cheap look whether jobs would be taken: what opens the circuit again after a breaker closed it."""
        ...


class LoadProbe(Protocol):
    """How busy a backend is, seen from outside svcd (others may use it too)."""

    async def read(self) -> float | None:
        """0 (idle) to 1 (full); None when there is no reading (counted, and the load is taken from our own slots)."""
        ...
