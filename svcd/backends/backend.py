"""Interface of backends: one run of a model, and the probe of its load."""

from typing import Protocol

from svcd.journal.work import ModelWork, WorkOutput


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
