"""Slots limit how many jobs are held at once.

A slot is taken before a job is claimed, and given back when the job ends.
"""

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

from svcd.base import metrics


@attrs.define(slots=True, eq=False)
class Slot:
    """Slot of one job. Giving it back twice has no further effect."""

    model: str
    job_id: bytes
    _slots: "Slots"
    _is_given_back: bool = False

    def give_back(self, *, settled: bool = False) -> None:
        if not self._is_given_back:
            self._is_given_back = True
            self._slots.take_back(self, settled=settled)


@attrs.define(slots=True, eq=False)
class Slots:
    """Slots of all models. `by_model` has the configured ones; `granted` is the registry's limit once it is known."""

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
        """Return how many more jobs may be claimed, of one model or of all."""
        limit = self.capacity if self.granted is None else min(self.capacity, self.granted)
        overall = max(0, limit - self.held)
        if model is None:
            return overall
        return max(0, min(overall, self.by_model.get(model, 0) - self._per_model[model]))

    def holds(self, job_id: bytes) -> bool:
        return job_id in self._held

    def held_of(self, model: str) -> int:
        return self._per_model[model]

    def take(self, model: str, job_id: bytes) -> Slot | None:
        """Take a slot. Return None if none is free or the job is already held."""
        return self.take_unchecked(model, job_id) if self.free(model) else None

    def take_unchecked(self, model: str, job_id: bytes) -> Slot | None:
        """Take a slot without checking the limits, for a job already claimed on the chain. Return None if held."""
        if job_id in self._held:
            return None
        self._held[job_id] = model
        self._per_model[model] += 1
        self.report()
        return Slot(model, job_id, self)

    def take_back(self, slot: Slot, *, settled: bool) -> None:
        """Free a slot, and flag the grant for a new read if it may have changed.

        A settle raises the reputation and thus the grant, which matters only while the grant is below the slots. Any
        other end lowers them, and a refused claim may mean that the grant is already smaller.
        """
        del self._held[slot.job_id]
        self._per_model[slot.model] -= 1
        self.report()
        if not settled or self.granted is None or self.granted < self.capacity:
            self._grant_doubted.set()
        if not self._held:
            self._emptied.set()
            self._emptied = trio.Event()

    def grant(self, capacity: int) -> None:
        self.granted = capacity
        metrics.capacity_granted.set(capacity)
        self.report()

    def clear_grant_doubt(self) -> None:
        """Clear the flag before the registry is read. Later changes may be missing from its answer."""
        self._grant_doubted = trio.Event()

    async def wait_grant_doubt(self) -> None:
        """Wait until the grant may differ from the registry's last answer."""
        await self._grant_doubted.wait()

    def report(self) -> None:
        metrics.capacity_free.set(self.free())

    async def until_empty(self) -> None:
        while self._held:
            await self._emptied.wait()
