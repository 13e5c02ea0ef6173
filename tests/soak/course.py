"""A figure over the time of a run, in constant memory."""

from typing import Final

import attrs

BINS: Final = 512  # even


@attrs.define
class Course:
    """Values in at most `BINS` bins of equal length. When the run outgrows them, two neighbours become one."""

    seconds: float = 1.0  # of a bin
    _counts: list[int] = attrs.field(factory=list)
    _sums: list[float] = attrs.field(factory=list)
    _peaks: list[float] = attrs.field(factory=list)

    def add(self, at: float, value: float) -> None:
        while at >= BINS * self.seconds:
            self._halve()
        place = int(max(at, 0.0) // self.seconds)
        missing = place + 1 - len(self._counts)
        self._counts += [0] * missing
        self._sums += [0.0] * missing
        self._peaks += [0.0] * missing
        self._counts[place] += 1
        self._sums[place] += value
        self._peaks[place] = max(self._peaks[place], value)

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Return values per second, by the middle of their bin. Empty bins are included, so that a standstill shows."""
        return [(self._middle(place), count / self.seconds) for place, count in enumerate(self._counts)]

    @property
    def means(self) -> list[tuple[float, float]]:
        return [
            (self._middle(place), total / count)
            for place, (count, total) in enumerate(zip(self._counts, self._sums, strict=True))
            if count
        ]

    @property
    def peaks(self) -> list[tuple[float, float]]:
        return [(self._middle(place), peak) for place, peak in enumerate(self._peaks) if self._counts[place]]

    @property
    def last(self) -> float:
        """Return the mean of the newest bin with values."""
        return self.means[-1][1]

    def _middle(self, place: int) -> float:
        return (place + 0.5) * self.seconds

    def _halve(self) -> None:
        if len(self._counts) % 2:
            self._counts.append(0)
            self._sums.append(0.0)
            self._peaks.append(0.0)
        self._counts = [a + b for a, b in zip(self._counts[::2], self._counts[1::2], strict=True)]
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._peaks = [max(a, b) for a, b in zip(self._peaks[::2], self._peaks[1::2], strict=True)]
        self.seconds *= 2
