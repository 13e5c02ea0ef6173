"""Record of a run, in seconds since its start: faults, work of clients, complaints.

Only the current round is recorded in full. Everything older is sums, so a run of days takes the memory of one round.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

_MOMENT_S: Final = 2.0
_MAX_COMPLAINTS: Final = 200
_CAUSES_KEPT_S: Final = 150.0  # a fault explains failures that come this much later, in the next round


@attrs.frozen
class Span:
    """A fault, from its start to its end."""

    kind: str
    start: float
    end: float


@attrs.frozen
class Done:
    """A piece of a client's work: what, when it ended, how long it took, and its outcome."""

    what: str
    at: float
    seconds: float
    outcome: str


@attrs.define
class Timeline:
    """`faults` and `done` are those of the current round. Each complaint is a broken promise."""

    began: float = attrs.field(factory=time.monotonic)
    faults: deque[Span] = attrs.field(factory=deque)
    done: deque[Done] = attrs.field(factory=deque)
    complaints: list[str] = attrs.field(factory=list)
    _struck: Counter[str] = attrs.field(factory=Counter)
    _outcomes: dict[str, Counter[str]] = attrs.field(factory=dict)
    _unnamed: int = 0  # complaints after the first `_MAX_COMPLAINTS`

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    @contextmanager
    def fault(self, kind: str) -> Iterator[None]:
        start = self.now
        try:
            yield
        finally:
            self.struck(Span(kind, start, self.now))

    def struck(self, span: Span) -> None:
        self.faults.append(span)
        self._struck[span.kind] += 1

    def moments(self, *kinds: str) -> list[tuple[float, float]]:
        """Return the intervals of this round when faults of these kinds were active, in Unix seconds. Each is a little
        longer than the fault, because state read before the end may be used after it."""
        began = time.time() - self.now
        return [(began + span.start, began + span.end + _MOMENT_S) for span in self.faults if span.kind in kinds]

    def finished(self, what: str, since: float, outcome: str) -> None:
        self.add(Done(what, self.now, self.now - since, outcome))

    def add(self, done: Done) -> None:
        self.done.append(done)
        self._outcomes.setdefault(done.what, Counter())[done.outcome] += 1

    def complain(self, text: str) -> None:
        if len(self.complaints) < _MAX_COMPLAINTS:
            self.complaints.append(text)
        else:
            self._unnamed += 1

    def end_round(self) -> None:
        """Delete the records of this round, except faults that may still explain failures of the next round."""
        since = self.now - _CAUSES_KEPT_S
        self.faults = deque(span for span in self.faults if span.end > since)
        self.done.clear()

    def fault_counts(self) -> dict[str, int]:
        return dict(sorted(self._struck.items()))

    def outcome_counts(self) -> dict[str, dict[str, int]]:
        return {what: dict(sorted(outcomes.items())) for what, outcomes in sorted(self._outcomes.items())}

    def as_json(self) -> dict[str, Any]:
        return {"faults": self.fault_counts(), "outcomes": self.outcome_counts(), "complaints_unnamed": self._unnamed}
