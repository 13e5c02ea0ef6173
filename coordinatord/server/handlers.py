"""The handlers of one connection's requests: what hypercorn calls a task group."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import structlog
from hypercorn.config import Config
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

from coordinatord.api.bodies import CallerGone
from coordinatord.server.inbox import Inbox

log = structlog.get_logger(__name__)

Send = Callable[[ASGISendEvent | None], Awaitable[None]]


class Handlers:
    """Left when every handler has ended, as task groups are."""

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> "Handlers":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: Any, trouble: Any, trace: TracebackType | None) -> None:
        await self._tasks.__aexit__(kind, trouble, trace)

    async def spawn_app(
        self, app: AppWrapper, _: Config, scope: Scope, send: Send
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start a handler. What it is to receive goes to the function that this returns."""
        inbox = Inbox()
        self._tasks.create_task(_handle(app, scope, inbox, send))
        return inbox.put

    def spawn(self, func: Callable[..., Any], *args: Any) -> None:
        self._tasks.create_task(func(*args))


async def _handle(app: AppWrapper, scope: Scope, inbox: Inbox, send: Send) -> None:
    try:
        await app(scope, inbox.get, send, _not_offered, _not_offered)
    except CallerGone:
        pass  # it left while the answer was on its way
    except Exception:
        log.exception("handler failed")  # half an answer is out: the connection ends in the midst of it
    finally:
        inbox.end()
        await send(None)


def _not_offered(*_: object) -> None:
    raise TypeError("WSGI applications are not served")
