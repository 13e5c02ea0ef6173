"""Slots: the jobs that are held, and how many more may be.

A slot is taken before a job is claimed, and given back when the job has ended in any way. Giving a slot back twice
counts once.
"""

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

from svcd.base import metrics


@attrs.define(slots=True, eq=False)
class Slot:
    model: str
    job_id: bytes
    _slots: "Slots"
    _given_back: bool = False

    def give_back(self, *, settled: bool = False) -> None:
        if not self._given_back:
            self._given_back = True
            self._slots.take_back(self, settled=settled)


@attrs.define(slots=True, eq=False)
class Slots:
    """`by_model`: the configured slots. `granted` is what the network allows over all models, once it is known."""

    by_model: Mapping[str, int]
    granted: int | None = None
    _held: dict[bytes, str] = attrs.field(factory=dict)
    _per_model: Counter[str] = attrs.field(factory=Counter)
    _emptied: trio.Event = attrs.field(factory=trio.Event)
    _doubted: trio.Event = attrs.field(factory=trio.Event)

    @property
    def capacity(self) -> int:
        return sum(self.by_model.values())

    @property
    def held(self) -> int:
        return len(self._held)

    def free(self, model: str | None = None) -> int:
        """How many more jobs may be claimed: of one model, or of all."""
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
        """None when no slot is free, or when the job is held already."""
        return self.take_anyway(model, job_id) if self.free(model) else None

    def take_anyway(self, model: str, job_id: bytes) -> Slot | None:
        """For a job that is held on the chain whatever we count. None when it is held here already."""
        if job_id in self._held:
            return None
        self._held[job_id] = model
        self._per_model[model] += 1
        self.tell()
        return Slot(model, job_id, self)

    def take_back(self, slot: Slot, *, settled: bool) -> None:
        """Each end of a job moves the reputation, and the grant with it: a settle upwards, which matters while the
        grant is short of the slots, and any other end down. A claim that was refused may have met a smaller grant."""
        del self._held[slot.job_id]
        self._per_model[slot.model] -= 1
        self.tell()
        if not settled or self.granted is None or self.granted < self.capacity:
            self._doubted.set()
        if not self._held:
            self._emptied.set()
            self._emptied = trio.Event()

    def grant(self, capacity: int) -> None:
        self.granted = capacity
        metrics.capacity_granted.set(capacity)
        self.tell()

    def ask_for_grant(self) -> None:
        """The registry is about to be asked: what happens from now on may not be in its answer."""
        self._doubted = trio.Event()

    async def until_grant_may_differ(self) -> None:
        """From what the registry answered last."""
        await self._doubted.wait()

    def tell(self) -> None:
        metrics.capacity_free.set(self.free())

    async def until_empty(self) -> None:
        while self._held:
            await self._emptied.wait()
