"""Interface for reporting tracing problems to the user."""

from typing import Protocol


class TraceReport(Protocol):
    """Receiver of tracing problems. Any thread may call the methods."""

    def report_start_failure(self, reason: str) -> None:
        """Report that tracing is configured but cannot start. The program runs without tracing."""

    def report_first_drop(self, reason: str) -> None:
        """Report the first of a series of dropped spans."""

    def report_drop_count(self, count: int) -> None:
        """Report the number of dropped spans, after the next delivery or at the end of the program."""
