import anyio
import pytest
from hypercorn.typing import ASGIReceiveEvent

from coordinatord.http.server.http11 import Inbox

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("size", "most"), [(1, 64), (1 << 16, 4), (1 << 20, 1)])
async def test_pieces_wait_outside_when_enough_are_held_however_small_they_are(size: int, most: int) -> None:
    inbox, put = Inbox(), 0
    piece: ASGIReceiveEvent = {"type": "http.request", "body": bytes(size), "more_body": True}

    async def fill() -> None:
        nonlocal put
        while True:
            await inbox.put(piece)
            put += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fill)
        await anyio.wait_all_tasks_blocked()
        assert put == most
        await inbox.get()
        await anyio.wait_all_tasks_blocked()
        assert put == most + 1
        tasks.cancel_scope.cancel()


async def test_caller_who_is_gone_is_told_however_much_is_held() -> None:
    inbox = Inbox()
    await inbox.put({"type": "http.request", "body": bytes(1 << 20), "more_body": True})
    await inbox.put({"type": "http.disconnect"})
    assert [(await inbox.get())["type"] for _ in range(2)] == ["http.request", "http.disconnect"]
