"""Limit the number of jobs held at once.

The daemon takes a slot before it claims a job, and releases the slot when the job ends.
"""

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

from svcd.base import metrics


@attrs.define(slots=True, eq=False)
class Slot:
    """Slot of one job. A second release has no effect."""

    model: str
    job_id: bytes
    _slots: "Slots"
    _is_released: bool = False

    def release(self, *, settled: bool = False) -> None:
        if not self._is_released:
            self._is_released = True
            self._slots.take_back(self, settled=settled)


@attrs.define(slots=True, eq=False)
class Slots:
    """Slots of all models. `by_model` has the configured numbers. `granted` is the registry's limit, if known."""

    by_model: Mapping[str, int]
    granted: int | None = None
    _held: dict[bytes, str] = attrs.field(factory=dict)
    _per_model: Counter[str] = attrs.field(factory=Counter)
    _emptied: trio.Event = attrs.field(factory=trio.Event)
    _grant_doubted: trio.Event = attrs.field(factory=trio.Event)

    @property
    def capacity(self) -> int:
        return sum(self.by_model.values())

    @property
    def held(self) -> int:
        return len(self._held)

    def free(self, model: str | None = None) -> int:
        """Return the number of jobs that may still be claimed, for one model or in total."""
        limit = self.capacity if self.granted is None else min(self.capacity, self.granted)
        overall = max(0, limit - self.held)
        if model is None:
            return overall
        return max(0, min(overall, self.by_model.get(model, 0) - self._per_model[model]))

    def holds(self, job_id: bytes) -> bool:
        return job_id in self._held

    def held_for(self, model: str) -> int:
        return self._per_model[model]

    def take(self, model: str, job_id: bytes) -> Slot | None:
        """Take a slot. Return None if no slot is free or the job is already held."""
        return self.take_unchecked(model, job_id) if self.free(model) else None

    def take_unchecked(self, model: str, job_id: bytes) -> Slot | None:
        """Take a slot without checking the limits, for a job claimed on the chain. Return None if the job is held."""
        if job_id in self._held:
            return None
        self._held[job_id] = model
        self._per_model[model] += 1
        self.update_free_metric()
        return Slot(model, job_id, self)

    def take_back(self, slot: Slot, *, settled: bool) -> None:
        """Free a slot, and request a new read of the grant if the grant may have changed.

        A settle may raise the grant, which matters only while the grant is below the configured slots. Any other end
        may lower the grant, and a refused claim may mean that the grant is already lower.
        """
        del self._held[slot.job_id]
        self._per_model[slot.model] -= 1
        self.update_free_metric()
        if not settled or self.granted is None or self.granted < self.capacity:
            self._grant_doubted.set()
        if not self._held:
            self._emptied.set()
            self._emptied = trio.Event()

    def set_capacity(self, capacity: int) -> None:
        self.granted = capacity
        metrics.capacity_granted.set(capacity)
        self.update_free_metric()

    def clear_grant_doubt(self) -> None:
        """Clear the request for a new read of the grant. Call this before the read, which may miss later changes."""
        self._grant_doubted = trio.Event()

    async def wait_grant_doubt(self) -> None:
        """Wait until the grant may have changed since the last read of the registry."""
        await self._grant_doubted.wait()

    def update_free_metric(self) -> None:
        metrics.capacity_free.set(self.free())

    async def wait_empty(self) -> None:
        while self._held:
            await self._emptied.wait()
