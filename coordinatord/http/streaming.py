"""Streamed responses, and responses that the client waits for, as in a long poll."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import anyio
import attrs

from common.daemon.asgi import Receive, Send
from coordinatord.base.concurrency import single_error_task_group
from coordinatord.base.errors import Retryable
from coordinatord.http.bodies import ClientDisconnected
from coordinatord.http.responses import Headers, Response


class ResponseSourceFailed(Exception):
    """Error of a response's source after the head was sent. Only closing the connection signals this error to the
    client."""


@attrs.frozen(slots=True)
class StreamedResponse:
    """Response with a body that is produced while it is sent. `length` is None if unknown, as for events.

    `content` opens the body. If `content` raises an error, the client gets the error instead of this response.
    """

    status: int
    headers: Headers
    length: int | None
    content: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]


async def send_streamed_response(
    receive: Receive, send: Send, response: StreamedResponse, *, with_body: bool = True
) -> None:
    """Send a response. Return when the response is sent or the client has disconnected.

    For HEAD, `with_body=False` sends only the headers, without opening the content.
    """
    length = () if response.length is None else ((b"content-length", str(response.length).encode()),)
    head = (*response.headers, *length)
    start = {"type": "http.response.start", "status": response.status, "headers": head}
    if not with_body:
        await send(start)
        await send({"type": "http.response.body", "body": b""})
        return
    head_sent = False
    try:
        async with response.content() as pieces, single_error_task_group() as tasks:
            tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
            head_sent = True
            await send(start)
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()
    # Caught outside of the block above, because a store's failure becomes Retryable only when the content closes.
    except Retryable as error:
        if not head_sent:
            raise
        raise ResponseSourceFailed(error.message) from error


@attrs.frozen(slots=True)
class HeldResponse:
    """Response that the server delays until an event occurs, as in a long poll. `respond` waits for the event, and
    returns the response and the seconds of waiting. If the client disconnects, `respond` is cancelled."""

    respond: Callable[[], Awaitable[tuple[Response, float]]]


async def wait_for_response(receive: Receive, held: HeldResponse) -> tuple[Response, float]:
    """Return the response and the seconds of waiting. Raise ClientDisconnected when the client disconnects."""
    response: tuple[Response, float] | None = None
    async with single_error_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
        response = await held.respond()
        tasks.cancel_scope.cancel()
    if response is None:
        raise ClientDisconnected
    return response


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel the scope when the client disconnects. Sending does not detect a disconnect, because bytes to a closed
    connection are dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
