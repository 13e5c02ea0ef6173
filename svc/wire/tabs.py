"""Post and read the frames of tabs, through a coordinator's mailbox or a provider's server.

Both servers have the same two routes. If the answer to a post is lost, the post is not retried, because a frame that
arrives twice ends its channel.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final, Protocol, TypeVar

import attrs
import httpx

from common.api.tabs import MAX_TAB_FRAME_BYTES, TabPost
from common.refusal import Refused
from common.scalars import base64_of, hex_of, read_base64
from svc.errors import ConnectionFailed
from svc.wire.answers import open_response, raw_pieces, read_response
from svc.wire.events import STREAM_TIMEOUT_S
from svc.wire.server_sent_events import EventReader
from svc.wire.transport import REQUEST_TIMEOUT_S, Transport, is_from_proxy, proxy_failure, read_error, read_record

MESSAGES_PATH: Final = "/v1/tabs/messages"
_EVENT_STREAM_TYPE: Final = "text/event-stream"
_END_EVENT_DATA: Final = b"{}"  # data of the event `end`; frames are base64, which has no braces
_STREAM_TIMEOUT: Final = httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_TIMEOUT_S)  # servers send heartbeats more often

_MAX_EVENT_BYTES: Final = 2 * MAX_TAB_FRAME_BYTES

T = TypeVar("T")


class CallWithHeaders(Protocol):
    """Function that calls `send` with the header of a session or token."""

    async def __call__(self, send: Callable[[dict[str, str]], Awaitable[T]], /) -> T: ...


def bearer_caller(token: str) -> CallWithHeaders:
    """Return a `CallWithHeaders` that sends a fixed token."""

    async def authorised(send: Callable[[dict[str, str]], Awaitable[T]], /) -> T:
        return await send({"authorization": f"Bearer {token}"})

    return authorised


@attrs.frozen(eq=False)
class TabRoutes:
    """Routes of tabs at one base address. `authorised` is `Sessions.authorised` or the result of `bearer_caller`."""

    transport: Transport
    authorised: CallWithHeaders

    async def post(self, frames: Sequence[tuple[bytes, bytes]]) -> TabPost:
        """Post frames, each with its job id. Return the tabs that were rejected.

        Raises ApiError, or ConnectionFailed if it is unknown whether the frames arrived.
        """
        body = {"messages": [{"job_id": hex_of(job_id), "body": base64_of(frame)} for job_id, frame in frames]}

        async def send(headers: Mapping[str, str]) -> TabPost:
            answer = await self.transport.send("POST", MESSAGES_PATH, resend=False, json=body, headers=headers)
            return read_record(answer, TabPost)

        return await self.authorised(send)

    @asynccontextmanager
    async def frames(self, job_id: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the frames for this side of a tab, until the tab or the stream ends.

        Raises ApiError (`not_claimed` before the claim and after the end) and ConnectionFailed, also while reading.
        """
        path = f"/v1/tabs/{hex_of(job_id)}/messages"
        async with AsyncExitStack() as stack:

            async def start(headers: Mapping[str, str]) -> httpx.Response:
                response = await stack.enter_async_context(
                    open_response(
                        self.transport.http,
                        "GET",
                        path,
                        headers={**headers, "accept": _EVENT_STREAM_TYPE},
                        timeout=_STREAM_TIMEOUT,
                    )
                )
                if is_from_proxy(response):
                    raise proxy_failure("GET", path, response)
                if response.is_error:
                    raise read_error(await read_response(response))
                if not response.headers.get("content-type", "").startswith(_EVENT_STREAM_TYPE):
                    raise ConnectionFailed(f"GET {path}: the content type of the answer is not {_EVENT_STREAM_TYPE}")
                return response

            try:
                pieces = await stack.enter_async_context(raw_pieces(await self.authorised(start)))
            except httpx.RequestError as failed:
                raise ConnectionFailed(f"GET {path}: {type(failed).__name__}: {failed}") from failed
            yield await stack.enter_async_context(aclosing(_read_frames(path, pieces)))


async def _read_frames(path: str, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    reader = EventReader()
    try:
        async for piece in pieces:
            for data in reader.feed(piece):
                if data == _END_EVENT_DATA:
                    return
                yield read_base64(data.decode("ascii"), MAX_TAB_FRAME_BYTES, "frame")
            if reader.unfinished_bytes > _MAX_EVENT_BYTES:
                raise ConnectionFailed(f"GET {path}: an event is longer than {_MAX_EVENT_BYTES} bytes")
    except httpx.RequestError as failed:
        raise ConnectionFailed(f"GET {path}: {type(failed).__name__}: {failed}") from failed
    except (Refused, UnicodeDecodeError):
        raise ConnectionFailed(f"GET {path}: an event contains no valid frame") from None
