"""A peer: an independent program that checks the project, and how its verdict is read."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import attrs

ROOT: Final = Path(__file__).parents[2]
LOGS: Final = ROOT / "build" / "peers"
SECONDS: Final = 1200
_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal")


@attrs.frozen
class Verdict:
    """`held`: a short summary. For a failure, the path of the log."""

    right: bool
    held: str


@attrs.frozen
class Peer:
    """`why_not` returns what this machine lacks, or None."""

    name: str
    what: str
    version: Callable[[], str]
    run: Callable[[], Verdict]
    why_not: Callable[[], str | None] = lambda: None


def ran(name: str, command: Sequence[str], more: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command. Return its exit status and output, and keep the output in build/peers."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    with log.open("wb") as written:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = 124
    return status, log.read_text("utf-8", "replace")


def by_command(name: str, command: Sequence[str], holds: Callable[[str], str | None]) -> Verdict:
    """Run a command. `holds` reads a summary from its output, or returns None if the output is unexpected."""
    status, said = ran(name, command)
    held = holds(said)
    if status != 0 or held is None:
        return Verdict(False, f"exit status {status}: build/peers/{name}.log")
    return Verdict(True, held)


def by_tests(name: str, *tests: str, more: Mapping[str, str] | None = None) -> Verdict:
    """Run these tests of pytest. A skipped test is a failure."""
    report = LOGS / f"{name}.xml"
    report.unlink(missing_ok=True)
    status, _ = ran(name, (*_PYTEST, f"--junitxml={report}", *tests), more)
    if not report.exists():
        return Verdict(False, f"exit status {status}: build/peers/{name}.log")
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314 - pytest has written it
    return judged(name, status, [_Case.of(case) for case in cases])


@attrs.frozen
class _Case:
    wrong: bool
    held: str | None = None

    @classmethod
    def of(cls, case: ElementTree.Element) -> "_Case":
        wrong = any(child.tag in ("failure", "error", "skipped") for child in case)
        said = [one.attrib["value"] for one in case.iter("property") if one.attrib["name"] == "held"]
        return cls(wrong, "; ".join(said) or None)


def judged(name: str, status: int, cases: Sequence[_Case]) -> Verdict:
    wrong = sum(case.wrong for case in cases)
    if status != 0 or wrong or not cases:
        return Verdict(False, f"{wrong} of {len(cases)} tests failed or were skipped: build/peers/{name}.log")
    said = [case.held for case in cases if case.held is not None]
    return Verdict(True, "; ".join(said) or f"{len(cases)} tests")


def first_number(*command: str) -> str:
    """Return the version from the first output line that contains one."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else "?"
