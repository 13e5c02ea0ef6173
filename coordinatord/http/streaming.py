"""Streamed and held responses: bodies that are passed on as fast as the caller takes them, or as they come to be, and
answers that wait for something to answer with, as long as their caller is there."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import anyio
import attrs

from common.daemon.asgi import Receive, Send
from coordinatord.base.concurrency import unwrap_single_error
from coordinatord.base.errors import Retryable
from coordinatord.http.bodies import CallerGone
from coordinatord.http.responses import Headers, Response


class CutShort(Exception):
    """The source of an answer failed after its head was sent: only ending the connection tells the caller."""


@attrs.frozen(slots=True)
class StreamedResponse:
    """`content` opens the bytes, `length` of them; None where the end is not known, as of events. What it raises when
    opened is answered in place of this."""

    status: int
    headers: Headers
    length: int | None
    content: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]


async def send_streamed(receive: Receive, send: Send, answer: StreamedResponse, *, with_body: bool = True) -> None:
    """Returns when all is sent, or the caller is gone. `with_body=False` answers HEAD, without opening the content."""
    length = () if answer.length is None else ((b"content-length", str(answer.length).encode()),)
    head = (*answer.headers, *length)
    start = {"type": "http.response.start", "status": answer.status, "headers": head}
    if not with_body:
        await send(start)
        await send({"type": "http.response.body", "body": b""})
        return
    head_sent = False
    try:
        async with answer.content() as pieces, unwrap_single_error() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            head_sent = True
            await send(start)
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()
    except Retryable as trouble:  # a store's failure becomes Retryable only where the content is closed
        if not head_sent:
            raise
        raise CutShort(trouble.message) from trouble


@attrs.frozen(slots=True)
class HeldResponse:
    """A response that may wait, given up when the caller is gone. `answer` makes it, and tells how many seconds it has
    done nothing but wait."""

    answer: Callable[[], Awaitable[tuple[Response, float]]]


async def hold(receive: Receive, held: HeldResponse) -> tuple[Response, float]:
    """Raises CallerGone when nobody waits for it any more."""
    answer: tuple[Response, float] | None = None
    async with unwrap_single_error() as tasks:
        tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
        answer = await held.answer()
        tasks.cancel_scope.cancel()
    if answer is None:
        raise CallerGone
    return answer


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Nobody else would notice: what is sent to a caller who is gone vanishes without a word."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
