import anyio
import pytest

from coordinatord.base.concurrency import LastingTasks, Stored
from coordinatord.base.errors import Retryable

pytestmark = pytest.mark.anyio


async def test_work_goes_on_when_it_has_told_that_it_is_stored() -> None:
    lasting, go_on, done = LastingTasks(), anyio.Event(), anyio.Event()

    async def act(stored: Stored) -> str:
        stored(1)
        await go_on.wait()
        done.set()
        return "mined"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lasting.run)
        await anyio.wait_all_tasks_blocked()
        assert await lasting.until_stored(act) is None
        go_on.set()
        with anyio.fail_after(5):
            await done.wait()
        tasks.cancel_scope.cancel()


async def test_what_ends_before_it_is_stored_is_answered() -> None:
    lasting = LastingTasks()

    async def act(_: Stored) -> str:
        return "refused"

    async def broken(_: Stored) -> str:
        raise Retryable("busy", "later")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lasting.run)
        await anyio.wait_all_tasks_blocked()
        assert await lasting.until_stored(act) == "refused"
        with pytest.raises(Retryable, match="later"):
            await lasting.until_stored(broken)
        tasks.cancel_scope.cancel()


async def test_caller_that_leaves_before_it_is_stored_ends_it() -> None:
    lasting, ended = LastingTasks(), anyio.Event()

    async def act(_: Stored) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lasting.run)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01):
            await lasting.until_stored(act)
        with anyio.fail_after(5):
            await ended.wait()
        tasks.cancel_scope.cancel()


async def test_requests_wait_as_ever_when_there_is_no_room() -> None:
    lasting = LastingTasks(most=1)
    go_on = anyio.Event()

    async def first(stored: Stored) -> str:
        stored(1)
        await go_on.wait()
        return "late"

    async def second(stored: Stored) -> str:
        stored(2)
        return "mined"

    assert await lasting.until_stored(second) == "mined"  # nothing runs yet
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lasting.run)
        await anyio.wait_all_tasks_blocked()
        assert await lasting.until_stored(first) is None
        assert await lasting.until_stored(second) == "mined"
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert await lasting.until_stored(second) is None
        tasks.cancel_scope.cancel()


async def test_work_that_a_shutdown_ends_is_to_be_asked_for_again() -> None:
    lasting = LastingTasks()
    begun = anyio.Event()

    async def act(_: Stored) -> None:
        begun.set()
        await anyio.sleep_forever()

    async def ask() -> None:
        with pytest.raises(Retryable, match="this process stops"):
            await lasting.until_stored(act)

    async with anyio.create_task_group() as callers, anyio.create_task_group() as background:
        background.start_soon(lasting.run)
        await anyio.wait_all_tasks_blocked()
        callers.start_soon(ask)
        await begun.wait()
        background.cancel_scope.cancel()


async def test_requests_that_hold_too_much_wait_as_ever() -> None:
    lasting, go_on = LastingTasks(most_bytes=100), anyio.Event()

    async def large(stored: Stored) -> str:
        stored(1)
        await go_on.wait()
        return "late"

    async def other(stored: Stored) -> str:
        stored(2)
        return "mined"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lasting.run)
        await anyio.wait_all_tasks_blocked()
        assert await lasting.until_stored(large, 60) is None
        assert await lasting.until_stored(other, 41) == "mined"
        assert await lasting.until_stored(other, 40) is None
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert await lasting.until_stored(other, 100) is None
        tasks.cancel_scope.cancel()
