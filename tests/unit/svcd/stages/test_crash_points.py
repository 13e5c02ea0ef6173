"""The provider is killed at every place where it waits, once per job, and restarted. Each job ends as it should."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs
import httpx
import pytest
import trio

from common.bundle import BundleItem, bundle_input
from svcd.journal.journal import JOURNAL_FILE
from tests.support.fakes.market import Market
from tests.support.fakes.market_answers import Script
from tests.support.faults.crash_points import CrashPoints, TrioCrashPoints
from tests.unit.svcd.stages.conftest import Start


@attrs.frozen
class Way:
    """`served`: what the gateway serves instead of the container. `steps`: tasks that every run must reach.

    `items`: number of items of a bundle. All of them complete.
    """

    served: bytes | None
    end: tuple[str, str | None]
    state: int
    steps: tuple[str, ...]
    items: int = 0


ALWAYS: Final = ("claimer", "pipeline")
WAYS: Final = {
    "settled": Way(None, ("settled", None), 2, (*ALWAYS, "opener", "runner", "sealer", "settler")),
    "bundle": Way(None, ("settled", None), 2, (*ALWAYS, "opener", "runner", "bundle_run", "sealer", "settler"), 3),
    "failed": Way(b"\x01" * 200, ("failed", "commitment_mismatch"), 3, (*ALWAYS, "failer")),
}


# By op: the journal states of which one must be on the disk when the market receives the op.
BEFORE: Final = {"claim": {"claiming"}, "settle": {"sealed", "uploaded"}, "fail": {"failing"}}


def watch_journal(market: Market, journal: Path, jobs: Sequence[str], unwritten: list[str]) -> None:
    """Check the journal's file for every op before the market executes the op."""

    def watched(op: str) -> Script:
        async def script(perform: Callable[[], httpx.Response]) -> httpx.Response:
            with closing(sqlite3.connect(journal)) as connection:
                row = connection.execute(
                    "select state from jobs where job_id = ?", (bytes.fromhex(jobs[-1][2:]),)
                ).fetchone()
            if row is None or row[0] not in BEFORE[op]:
                unwritten.append(f"{op} of {jobs[-1]}: the journal has {row}")
            return perform()

        return script

    market.always |= {op: watched(op) for op in BEFORE}


def _posted(market: Market, way: Way) -> str:
    if not way.items:
        return market.post(served=way.served)
    items = [BundleItem({"input": f"{n}", "max_tokens": 9}) for n in range(way.items)]
    return market.post(market.container(market.envelope(bundle_input(items)).encode()))


@pytest.mark.parametrize("way", WAYS)
async def test_provider_killed_anywhere_ends_each_job_once(
    way: str, market: Market, start: Start, tmp_path: Path
) -> None:
    expected = WAYS[way]
    crash = TrioCrashPoints(CrashPoints("svcd", ("svcd/stages/", "svcd/journal/", "svcd/job/")))
    trio.lowlevel.add_instrument(crash)
    jobs: list[str] = []
    unwritten: list[str] = []
    watch_journal(market, tmp_path / "state" / JOURNAL_FILE, jobs, unwritten)
    while not jobs or crash.died_at is not None:  # until a run passes all places without a kill
        jobs.append(_posted(market, expected))
        crash.died_at = None
        with trio.CancelScope() as crash.scope:
            async with start() as running:
                assert await running.end_of(jobs[-1]) == expected.end
        crash.scope = None
        if crash.died_at is not None:
            async with start() as running:
                assert await running.end_of(jobs[-1]) == expected.end, crash.died_at
                if expected.items:
                    assert running.opened(jobs[-1]).usage["completed"] == expected.items, crash.died_at
    assert unwritten == []
    assert Counter(market.jobs[job]["state"] for job in jobs) == {expected.state: len(jobs)}
    assert len(jobs) == len(crash.points.met) + 1 > 30
    lines = {line for place in crash.points.met for line in place}
    assert [step for step in expected.steps if not any(f"svcd/stages/{step}.py" in line for line in lines)] == []
