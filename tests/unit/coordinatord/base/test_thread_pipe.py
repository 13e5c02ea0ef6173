import threading

import anyio
import pytest

from coordinatord.base.thread_pipe import thread_pipe

pytestmark = pytest.mark.anyio


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
