"""Concurrent parts of a check."""

from collections.abc import AsyncIterator

import anyio
import pytest

from common.checks import CheckResult, CheckRow, fact, right
from common.daemon.process import Fatal
from coordinatord.run.checks.parts import CheckPart, run_parts

pytestmark = pytest.mark.anyio


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
