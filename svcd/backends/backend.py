"""Interfaces of a backend and of its load probe."""

from collections.abc import Callable
from typing import Protocol

from svcd.journal.work import ModelWork, WorkOutput

# Callback that receives each chunk of an answer as soon as the server sends it, in the format of the server's stream.
OnDelta = Callable[[dict[str, object]], None]


class Backend(Protocol):
    """Backend of one model. The caller limits the concurrent calls of `run` to the model's slots.

    `run` ends before the deadline. It returns the output or raises `WorkFailed` with one of these codes:

    - `backend_error`: a retry would not help; `backend_fault` is True if the backend is to blame
    - `backend_exhausted`: every attempt failed
    - `deadline_wait`: the next wait or attempt would end past `work.deadline`
    - `media_input_refused`: the request does not fit the backend or the order

    A cancelled `run` stops its work on the backend. A streaming backend passes each chunk to `on_delta`.
    After the first chunk, the backend does not retry.
    """

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput: ...

    async def is_up(self) -> bool:
        """Return True if the backend accepts jobs. The breaker uses this cheap probe before it closes the circuit."""
        ...

    async def explain_unknown_model(self, model: str) -> str | None:
        """Return a message if the server lists its models and `model` is not in the list. Return None otherwise."""
        ...


class LoadProbe(Protocol):
    """Probe of a backend's load, including load from outside svcd."""

    async def read(self) -> float | None:
        """Return the load from 0 (idle) to 1 (full), or None if the load is unknown."""
        ...
