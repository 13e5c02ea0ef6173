"""The load when there is nobody to ask: the part of the own slots that is taken."""

from collections.abc import Callable

import attrs


@attrs.frozen(slots=True)
class SlotsProbe:
    slots: int
    in_flight: Callable[[], int]

    async def read(self) -> float | None:
        return self.now()

    def now(self) -> float:
        return max(0.0, min(1.0, self.in_flight() / self.slots))
