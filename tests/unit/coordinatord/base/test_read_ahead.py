from collections.abc import AsyncIterator

import anyio
import pytest

from coordinatord.base.concurrency import read_ahead, single_error_task_group

pytestmark = pytest.mark.anyio


async def counting(made: list[int], failing_at: int = 100) -> AsyncIterator[int]:
    for n in range(5):
        if n == failing_at:
            raise KeyError(n)
        made.append(n)
        yield n


async def test_source_is_one_piece_ahead_and_no_more() -> None:
    made: list[int] = []
    async with read_ahead(counting(made)) as pieces:
        seen = []
        async for piece in pieces:
            await anyio.wait_all_tasks_blocked()
            assert made[-1] == min(piece + 1, 4)
            seen.append(piece)
    assert seen == [0, 1, 2, 3, 4]


async def test_error_of_the_source_is_raised_unchanged() -> None:
    async def consume() -> None:
        async with read_ahead(counting([], failing_at=2)) as pieces:
            async for _ in pieces:
                pass

    with pytest.raises(KeyError):
        await consume()


async def test_block_that_leaves_early_stops_the_source() -> None:
    made: list[int] = []
    async with read_ahead(counting(made)) as pieces:
        assert await anext(pieces) == 0
    assert made[-1] < 4


async def test_concurrent_failures_are_both_reported() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def fail_both() -> None:
        async with single_error_task_group() as tasks:
            tasks.start_soon(fail, KeyError())
            tasks.start_soon(fail, ValueError())

    with pytest.raises(ExceptionGroup) as both:
        await fail_both()
    assert {type(error) for error in both.value.exceptions} == {KeyError, ValueError}
