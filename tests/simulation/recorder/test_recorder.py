"""Two recordings of one commit are identical, and a change of behaviour is reported as that change."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.simulation.recorder.comparing import Comparison, compare, compare_entries
from tests.simulation.recorder.entries import Entry
from tests.simulation.recorder.normal import Normaliser

ROOT: Final = Path(__file__).parents[3]


def run(module: str, *arguments: str, hashes: str = "0") -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hashes}
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment, check=True, timeout=900)


@pytest.mark.long
@pytest.mark.timeout(1900)
def test_two_recordings_of_a_commit_are_identical(tmp_path: Path) -> None:
    for hashes in ("1", "2"):
        folder = str(tmp_path / hashes)
        run(
            "tests.simulation.recorder",
            "record",
            folder,
            "--first",
            "2",
            "--seeds",
            "2",
            "--without-tests",
            hashes=hashes,
        )
    one, other = ([path.read_text() for path in sorted((tmp_path / h).rglob("*.jsonl"))] for h in ("1", "2"))
    assert len(one) == 2
    assert one == other
    assert '"section": "event"' in one[0]
    assert '"section": "promise"' not in one[0]


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_a_change_is_reported_as_exactly_its_kind(tmp_path: Path) -> None:
    run("tests.simulation.recorder.planted", str(tmp_path))
    found = {name: compare(tmp_path / "plain", tmp_path / name).found for name in ("answer", "event", "column")}
    assert {name: sorted(kinds) for name, kinds in found.items()} == {
        "answer": ["answer POST /auth/session 200 .body.provider_id"],
        "event": ["event claimed is missing"],
        "column": ["promise broken is new", "table owner_sums .completed"],
    }


def entry(kind: str = "posted", subject: str = "job#1", section: str = "event", **value: Any) -> Entry:
    return Entry(section, subject, kind, {"job_id": subject, "a": 1, "b": 2, **value})


def compared(one: list[Entry], other: list[Entry]) -> Comparison:
    return compare_entries({"seed": one}, {"seed": other})


def test_order_alone_is_no_difference() -> None:
    one, other = entry("posted"), entry("claimed")
    result = compared([one, other], [other, one])
    assert (result.found, result.order_only, result.identical) == ({}, ["seed job#1"], 0)


def test_one_more_poll_is_no_difference_and_one_more_event_is() -> None:
    poll, event = entry(section="answer"), entry()
    assert compared([poll], [poll, poll]).found == {}
    assert list(compared([event], [event, event]).found) == ["event posted another number of times"]


def test_value_of_another_job_is_told_from_one_never_seen() -> None:
    one = [entry(c=3), entry(subject="job#2", c=4)]
    (moved,) = compared(one, [entry(c=4), entry(subject="job#2", c=3)]).found.values()
    assert (moved.unseen, len(moved.places)) == (0, 2)
    ((kind, unseen),) = compared(one, [entry(c=3), entry(subject="job#2", c=5)]).found.items()
    assert (kind, unseen.unseen, unseen.example) == ("event posted .c", 1, "seed job#2: 4 → 5")


def test_names_do_not_depend_on_what_came_before() -> None:
    normal = Normaliser({"ab" * 32: "job#1"})
    seen = {
        "job": "0x" + "ab" * 32,
        "z_hash": "0x" + "cd" * 32,
        "a_hash": "0x" + "cd" * 32,
        "created_at": 1_790_000_000,
    }
    named = {"job": "job#1", "a_hash": "<hex32>", "z_hash": "<hex32 of a_hash>", "created_at": "<time>"}
    assert normal.entry(seen) == named
    normal.entry({"other": "0x" + "ef" * 32})
    assert normal.entry(seen) == named
