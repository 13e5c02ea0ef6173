"""Interfaces of a backend and of its load probe."""

from typing import Protocol

from svcd.journal.work import ModelWork, WorkOutput


class Backend(Protocol):
    """Backend of one model. The caller limits concurrent calls of `run` to the model's slots.

    `run` returns before the deadline or raises `WorkFailed`:

    - `backend_error`: refused, and a retry would not help; `backend_fault` is True if the backend is to blame
    - `backend_exhausted`: every attempt failed
    - `deadline_wait`: the next wait or attempt would end past `work.deadline`
    - `media_input_refused`: the request does not fit the backend or the order

    A cancelled `run` stops its work on the backend.
    """

    async def run(self, work: ModelWork) -> WorkOutput: ...

    async def is_up(self) -> bool:
        """Return True if the backend accepts jobs. The breaker uses this cheap probe before it closes the circuit."""
        ...

    async def unknown_name(self, model: str) -> str | None:
        """Return why the server does not know its name for this model, or None if it does or has no list of names."""
        ...


class LoadProbe(Protocol):
    """Probe of a backend's load, including load from outside svcd."""

    async def read(self) -> float | None:
        """Return 0 (idle) to 1 (full), or None without a reading. The caller then uses the share of busy slots."""
        ...
