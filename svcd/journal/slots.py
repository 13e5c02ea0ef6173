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
            self._slots.return_slot(self, settled=settled)


@attrs.define(slots=True, eq=False)
class Slots:
    """Slots of all models. `slots_by_model` has the configured numbers. `granted_slots` is the total that the registry
    allows."""

    slots_by_model: Mapping[str, int]
    granted_slots: int | None = None
    _model_by_job: dict[bytes, str] = attrs.field(factory=dict)
    _held_by_model: Counter[str] = attrs.field(factory=Counter)
    _empty_event: trio.Event = attrs.field(factory=trio.Event)
    _grant_stale_event: trio.Event = attrs.field(factory=trio.Event)

    @property
    def total_slots(self) -> int:
        return sum(self.slots_by_model.values())

    @property
    def held_slots(self) -> int:
        return len(self._model_by_job)

    def free(self, model: str | None = None) -> int:
        """Return the number of jobs that may still be claimed, for one model or in total."""
        limit = self.total_slots if self.granted_slots is None else min(self.total_slots, self.granted_slots)
        overall = max(0, limit - self.held_slots)
        if model is None:
            return overall
        return max(0, min(overall, self.slots_by_model.get(model, 0) - self._held_by_model[model]))

    def holds(self, job_id: bytes) -> bool:
        return job_id in self._model_by_job

    def held_for(self, model: str) -> int:
        return self._held_by_model[model]

    def take(self, model: str, job_id: bytes) -> Slot | None:
        """Take a slot. Return None if no slot is free or the job is already held."""
        return self.take_unchecked(model, job_id) if self.free(model) else None

    def take_unchecked(self, model: str, job_id: bytes) -> Slot | None:
        """Take a slot without checking the limits, for a job claimed on the chain. Return None if the job is held."""
        if job_id in self._model_by_job:
            return None
        self._model_by_job[job_id] = model
        self._held_by_model[model] += 1
        self.update_free_metric()
        return Slot(model, job_id, self)

    def return_slot(self, slot: Slot, *, settled: bool) -> None:
        """Free a slot, and mark the grant as stale if the end of the job may have changed the grant.

        A settle may raise the grant, which matters only while the grant is below the configured slots. Any other end
        may lower the grant, and a refused claim may mean that the grant is already lower.
        """
        del self._model_by_job[slot.job_id]
        self._held_by_model[slot.model] -= 1
        self.update_free_metric()
        if not settled or self.granted_slots is None or self.granted_slots < self.total_slots:
            self._grant_stale_event.set()
        if not self._model_by_job:
            self._empty_event.set()
            self._empty_event = trio.Event()

    def set_granted(self, granted: int) -> None:
        self.granted_slots = granted
        metrics.capacity_granted.set(granted)
        self.update_free_metric()

    def mark_grant_current(self) -> None:
        """Mark the grant as current. Call this before the read, because the read may miss later changes."""
        self._grant_stale_event = trio.Event()

    async def wait_until_grant_stale(self) -> None:
        """Wait until the grant may have changed since its last read."""
        await self._grant_stale_event.wait()

    def update_free_metric(self) -> None:
        metrics.capacity_free.set(self.free())

    async def wait_empty(self) -> None:
        while self._model_by_job:
            await self._empty_event.wait()
