"""What a request's handler has still to receive: the pieces of its body, and that its caller is gone."""

import asyncio
from collections import deque
from typing import Final

from hypercorn.typing import ASGIReceiveEvent

_LEAST: Final = 1 << 12  # bytes that a piece counts for
_ENOUGH: Final = 1 << 18  # bytes; what comes after them waits in the socket


class Inbox:
    """A queue with one reader. It holds nobody up once the handler has ended, or to say that the caller is gone: with
    a bounded queue, a handler that answers without reading its body would leave the connection waiting for ever."""

    def __init__(self) -> None:
        self._messages: deque[ASGIReceiveEvent] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._ended = False

    async def put(self, message: ASGIReceiveEvent) -> None:
        while self._size >= _ENOUGH and not self._ended and message["type"] == "http.request":
            await self._change()
        if not self._ended:
            self._messages.append(message)
            self._size += _size_of(message)
            self._changed.set()

    async def get(self) -> ASGIReceiveEvent:
        while not self._messages:
            await self._change()
        message = self._messages.popleft()
        self._size -= _size_of(message)
        self._changed.set()
        return message

    def end(self) -> None:
        """Nobody will read any more."""
        self._ended = True
        self._messages.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _size_of(message: ASGIReceiveEvent) -> int:
    """What it takes of `_ENOUGH`: a body that comes in chunks of one byte weighs far more than its bytes."""
    return max(len(message["body"]), _LEAST) if message["type"] == "http.request" else 0
