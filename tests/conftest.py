import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The servers of the tests speak no TLS. asyncpg would ask for it first, and where a connection is given up at just that
# moment it leaves an exception behind that nobody awaits, which fails the test.
os.environ["PGSSLMODE"] = "disable"
# What tests write lies below this folder, as all else does that the checks make.
(ROOT / "build" / "tmp").mkdir(parents=True, exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(ROOT / "build" / "tmp"))
os.environ.setdefault("MPLCONFIGDIR", str(ROOT / "build" / "matplotlib"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests outside of svcd's folders run on asyncio, as the coordinator does."""
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped and why, into the file that SKIPPED_TESTS names: one line for each file of tests and reason."""
    if (wanted := os.environ.get("SKIPPED_TESTS")) is not None:
        Path(wanted).write_text("".join(_skipped(terminalreporter)), encoding="utf-8")


def _skipped(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    counts: dict[tuple[str, str], int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        where = report.longrepr  # file, line and reason; a worker's report has them as a list
        reason = where[2] if isinstance(where, (tuple, list)) else str(where)
        why = report.nodeid.partition("::")[0], reason.removeprefix("Skipped: ")
        counts[why] = counts.get(why, 0) + 1
    for (file, reason), count in sorted(counts.items()):
        yield f"  {count} test{'s' if count > 1 else ''} of {file}: {reason}\n"
