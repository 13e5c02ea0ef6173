"""Reports skipped tests in one file. With CI=1, a skip fails unless `skips.toml` lists it with a reason.

A pytest plugin that `conftest.py` loads. Without it, a machine that lacks a program would skip the tests for that
program for years, unnoticed.
"""

import os
import tomllib
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import attrs
import pytest

_LIST: Final = Path(__file__).with_suffix(".toml")


@attrs.frozen
class ListedSkip:
    """`tests` and `reason` are patterns. `because` names the program or right that the machine lacks."""

    tests: str
    reason: str
    because: str

    def excuses(self, test: str, reason: str) -> bool:
        return fnmatchcase(test, self.tests) and fnmatchcase(reason, self.reason)


def listed() -> list[ListedSkip]:
    return [ListedSkip(**entry) for entry in tomllib.loads(_LIST.read_text(encoding="utf-8"))["skip"]]


def must_be_listed() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc] # pytest sends it
    if report.skipped and not hasattr(report, "wasxfail"):
        _require_listed(report, item.nodeid)
    return report  # type: ignore[return-value] # the wrapper's result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Handle a module that is skipped as a whole."""
    report: pytest.CollectReport = yield  # type: ignore[misc] # pytest sends it
    if report.skipped:
        _require_listed(report, collector.nodeid)
    return report  # type: ignore[return-value] # the wrapper's result


def _require_listed(report: pytest.TestReport | pytest.CollectReport, test: str) -> None:
    reason = _reason(report)
    if must_be_listed() and not any(skip.excuses(test, reason) for skip in listed()):
        report.outcome = "failed"
        report.longrepr = (
            f"{test} is skipped ({reason}), and with CI=1 a skip must be listed in"
            f" tests/support/{_LIST.name}: install what it needs, or add it there with its reason"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the skips to the file in SKIPPED_TESTS, one line for each pair of test file and reason."""
    if (wanted := os.environ.get("SKIPPED_TESTS")) is not None:
        Path(wanted).write_text("".join(_told(terminalreporter.stats.get("skipped", []))), encoding="utf-8")


def _told(reports: Collection[pytest.TestReport]) -> Iterator[str]:
    counts: dict[tuple[str, str], int] = {}
    for report in reports:
        why = report.nodeid.partition("::")[0], _reason(report)
        counts[why] = counts.get(why, 0) + 1
    for (file, reason), count in sorted(counts.items()):
        yield f"  {count} test{'s' if count > 1 else ''} of {file}: {reason}\n"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr  # file, line and reason, which an xdist worker sends as a list
    reason = where[2] if isinstance(where, (tuple, list)) else str(where)
    return str(reason).removeprefix("Skipped: ")
