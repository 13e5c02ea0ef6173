"""Work that runs ahead, in a thread, or until a service is ready."""

import threading
from collections.abc import AsyncIterator

import anyio
import pytest

from common.daemon.process import Fatal
from coordinatord.base.concurrency import read_ahead, single_error_task_group
from coordinatord.base.errors import Retryable
from coordinatord.base.startup import StartupRetry
from coordinatord.base.thread_pipe import thread_pipe


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


class Gate:
    """Work that waits until the test releases it."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self._open = threading.Event()

    def work(self, piece: bytes) -> None:
        self._open.wait(10)
        if piece == b"bad":
            raise ValueError("bad")
        self.done.append(piece)

    def open(self) -> None:
        self._open.set()


async def test_pieces_are_worked_on_in_order_while_more_are_brought() -> None:
    gate = Gate()
    async with thread_pipe() as thread:
        for n in range(3):
            await thread.queue_work(gate.work, b"%d" % n)
        assert gate.done == []
        gate.open()
        for n in range(3, 9):
            await thread.queue_work(gate.work, b"%d" % n)
        await thread.wait_until_idle()
        assert gate.done == [b"%d" % n for n in range(9)]


async def test_producer_waits_for_a_slow_thread() -> None:
    gate = Gate()
    async with thread_pipe() as thread:
        with anyio.move_on_after(0.05) as waiting:
            while True:
                await thread.queue_work(gate.work, b"more")
        gate.open()
    assert waiting.cancelled_caught
    assert len(gate.done) <= 4  # three waiting and one in progress


async def test_failure_of_the_work_ends_the_block() -> None:
    gate = Gate()
    gate.open()

    async def block() -> None:
        async with thread_pipe() as thread:
            for piece in (b"good", b"bad", b"late"):
                await thread.queue_work(gate.work, piece)
            await thread.wait_until_idle()

    with pytest.raises(ValueError, match="bad"):
        await block()
    assert gate.done == [b"good"]


async def test_failing_block_raises_only_its_own_error() -> None:
    gate = Gate()

    async def block() -> None:
        async with thread_pipe() as thread:
            await thread.queue_work(gate.work, b"bad")
            await anyio.wait_all_tasks_blocked()
            gate.open()
            raise KeyError

    with pytest.raises(KeyError):
        await block()


AWAY = Retryable("not_ready", "not there yet")


class Starting:
    """A service that becomes available after this many attempts."""

    def __init__(self, attempts: int, trouble: Exception = AWAY) -> None:
        self.missing = attempts
        self._trouble = trouble

    async def __call__(self) -> str:
        if self.missing == 0:
            return "there"
        self.missing -= 1
        raise self._trouble


async def test_starting_service_is_waited_for() -> None:
    assert await StartupRetry(60, first_pause_s=0).retry_until_ready("it", Starting(3)) == "there"


async def test_timeout_names_the_missing_service() -> None:
    starting = Starting(2)
    with pytest.raises(Retryable, match="not there yet"):
        await StartupRetry(0, first_pause_s=0).retry_until_ready("it", starting)
    assert starting.missing == 1


async def test_permanently_missing_service_is_not_waited_for() -> None:
    starting = Starting(2, Fatal("another chain"))
    with pytest.raises(Fatal):
        await StartupRetry(60, first_pause_s=0).retry_until_ready("it", starting)
    assert starting.missing == 1
