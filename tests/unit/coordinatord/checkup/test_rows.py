"""Parts of a check side by side, and the table that they make."""

import json
from collections.abc import AsyncIterator

import anyio
import pytest

from common.daemon.process import Fatal
from coordinatord.run.checks.rows import CheckPart, CheckRow, check_json, check_table, right, run_parts, told, wrong

pytestmark = pytest.mark.anyio


async def hangs() -> AsyncIterator[CheckRow]:
    yield right("first", "seen before it hung")
    await anyio.sleep_forever()


async def fails() -> AsyncIterator[CheckRow]:
    raise Fatal("PORT must be free")
    yield


async def answers() -> AsyncIterator[CheckRow]:
    yield told("last", "of the others it knows nothing")


async def test_part_that_hangs_or_fails_is_a_wrong_row_with_its_remedy_and_holds_up_no_other() -> None:
    with anyio.fail_after(60):
        rows = await run_parts(
            [
                CheckPart("slow", hangs, "is it up?", seconds=0.05),
                CheckPart("broken", fails, "set it right"),
                CheckPart("well", answers, ""),
            ]
        )
    assert [(row.what, row.right, row.text) for row in rows] == [
        ("first", True, "seen before it hung"),
        ("slow", False, "no answer in 0.05 s: is it up?"),
        ("broken", False, "PORT must be free: set it right"),
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


def test_table_marks_each_row_and_counts_what_is_wrong() -> None:
    rows = [right("node", "answers"), wrong("role", "none", "have it given"), told("escrow", "off")]
    assert check_table(rows).splitlines() == [
        "right  node    answers",
        "WRONG  role    none: have it given",
        "       escrow  off",
        "1 wrong: role",
    ]
    assert check_table([right("node", "answers")]).splitlines()[-1] == "nothing is wrong"
    assert json.loads(check_json(rows))[1] == {
        "what": "role",
        "right": False,
        "detail": "none",
        "remedy": "have it given",
    }
