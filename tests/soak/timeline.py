"""Record of a run, in seconds since its start: faults, requests, jobs, readings, complaints."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

_MOMENT: Final = 2.0  # seconds


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


@attrs.frozen
class Reading:
    """Metrics of one daemon at one time."""

    daemon: str
    at: float
    values: dict[str, float]


@attrs.define
class Timeline:
    began: float = attrs.field(factory=time.monotonic)
    faults: list[Span] = attrs.field(factory=list)
    done: list[Done] = attrs.field(factory=list)
    readings: list[Reading] = attrs.field(factory=list)
    complaints: list[str] = attrs.field(factory=list)  # each is a broken promise

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    @contextmanager
    def fault(self, kind: str) -> Iterator[None]:
        start = self.now
        try:
            yield
        finally:
            self.faults.append(Span(kind, start, self.now))

    def moments(self, kind: str) -> list[tuple[float, float]]:
        """Return the intervals when faults of this kind were active, in Unix seconds. Each is a little longer than the
        fault, because state read before the end may be used after it."""
        began = time.time() - self.now
        return [(began + span.start, began + span.end + _MOMENT) for span in self.faults if span.kind == kind]

    def finished(self, what: str, since: float, outcome: str) -> None:
        self.done.append(Done(what, self.now, self.now - since, outcome))

    def complain(self, text: str) -> None:
        self.complaints.append(text)

    def fault_counts(self) -> dict[str, int]:
        return dict(sorted(Counter(span.kind for span in self.faults).items()))

    def outcome_counts(self) -> dict[str, dict[str, int]]:
        counts: dict[str, Counter[str]] = {}
        for done in self.done:
            counts.setdefault(done.what, Counter())[done.outcome] += 1
        return {what: dict(sorted(outcomes.items())) for what, outcomes in sorted(counts.items())}

    def as_json(self) -> dict[str, Any]:
        struck = sorted(self.faults, key=lambda span: span.start)
        return {
            "faults": self.fault_counts(),
            "outcomes": self.outcome_counts(),
            "plan": [[span.kind, round(span.start, 1), round(span.end, 1)] for span in struck],
        }
