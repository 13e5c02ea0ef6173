"""Concurrent parts of a check, and the row on replication."""

from collections.abc import AsyncIterator

import anyio
import pytest

from common.checks import CheckResult, CheckRow, fact, right
from common.daemon.process import Fatal
from coordinatord.run.checks.database import replication_row
from coordinatord.run.checks.parts import CheckPart, run_parts
from coordinatord.storage.database.replication_sql import Replication


async def hangs() -> AsyncIterator[CheckRow]:
    yield right("first", "seen before it hung")
    await anyio.sleep_forever()


async def fails() -> AsyncIterator[CheckRow]:
    raise Fatal("PORT must be free")
    yield


async def answers() -> AsyncIterator[CheckRow]:
    yield fact("last", "of the others it knows nothing")


async def test_part_that_hangs_or_fails_is_a_wrong_row() -> None:
    with anyio.fail_after(60):
        rows = await run_parts(
            [
                CheckPart("slow", hangs, "is it up?", seconds=0.05),
                CheckPart("broken", fails, "set it right"),
                CheckPart("well", answers, ""),
            ]
        )
    assert [(row.what, row.result, row.text) for row in rows] == [
        ("first", CheckResult.RIGHT, "seen before it hung"),
        ("slow", CheckResult.WRONG, "no answer in 0.05 s: is it up?"),
        ("broken", CheckResult.WRONG, "PORT must be free: set it right"),
        ("last", None, "of the others it knows nothing"),
    ]


async def test_parts_run_side_by_side() -> None:
    met = anyio.Event()

    async def waits() -> AsyncIterator[CheckRow]:
        await met.wait()
        yield right("waited", "for the other")

    async def tells() -> AsyncIterator[CheckRow]:
        met.set()
        yield right("told", "the other")

    rows = await run_parts([CheckPart("a", waits, "", seconds=5), CheckPart("b", tells, "", seconds=5)])
    assert [row.what for row in rows] == ["waited", "told"]


def _state(names: str, standbys: int, *, commits: str = "on", fsync: bool = True) -> Replication:
    return Replication(names, commits, fsync, standbys, synchronous_count=standbys, hidden_count=0, lag_s=0.0)


@pytest.mark.parametrize(
    ("state", "result", "says"),
    [
        (_state("", 0), None, "asynchronous, 0 standbys"),
        (_state("a", 1, commits="local"), None, "asynchronous, 1 standbys"),
        (_state("a", 0), CheckResult.WRONG, "no standby is connected"),
        (_state("a", 1), None, "a standby that hangs stops the market"),
        (_state("*", 1), None, "a standby that hangs stops the market"),
        (_state("FIRST 2 (a, b)", 2), None, "a standby that hangs stops the market"),
        (_state("ANY 1 (a, b)", 1), None, "a standby that hangs stops the market"),
        (_state("ANY 1 (a, b)", 2), CheckResult.RIGHT, "1 of 2 standbys may fail"),
        (_state("a, b", 2), CheckResult.RIGHT, "1 of 2 standbys may fail"),
        (_state("2 (*)", 3), CheckResult.RIGHT, "1 of 3 standbys may fail"),
        (_state("ANY 1 (a, b)", 2, fsync=False), None, "fsync is off"),
    ],
)
def test_row_states_the_cost_of_a_failure(state: Replication, result: CheckResult | None, says: str) -> None:
    row = replication_row(state)
    assert row.result is result
    assert says in row.detail
