"""Read content by its id from storage gateways, without credentials.

A round tries each gateway in turn. A gateway that did not answer, or answered 404 or 5xx, is tried again in the next
round, because new content may not have reached the gateway yet. Other gateways are not tried again.
"""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio
import attrs
import httpx

from svc.core.retries import GATEWAY_RETRY_PAUSE_S, MAX_GATEWAY_ATTEMPTS
from svc.wire.answers import MAX_CONTENT_BYTES, follow_redirects, unencoded_pieces
from svc.wire.transport import Sleep

_OK_STATUS: Final = 200
_NOT_FOUND_STATUS: Final = 404
_MIN_SERVER_ERROR_STATUS: Final = 500
_CID_PATTERN: Final = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)
# Timeout for each 64 KiB, because a gateway could send a byte at a time.
_PIECE_TIMEOUT_S: Final = 180.0

T = TypeVar("T")


@attrs.frozen(slots=True, eq=False)
class NotServed(Exception):
    """A gateway did not serve the content.

    `retryable`: the gateway may serve the content later. `answered`: the gateway sent an answer.
    """

    detail: str
    retryable: bool
    answered: bool = True

    def __str__(self) -> str:
        return self.detail


@attrs.frozen(slots=True, eq=False)
class NoGatewayServed(Exception):
    """No gateway served the content. `retryable`: a gateway may serve the content later."""

    failures: Sequence[str]
    retryable: bool

    def __str__(self) -> str:
        return "; ".join(self.failures) or "no gateway answered in time"


def is_content_id(cid: str) -> bool:
    """Return True if a text can be a content id. Check this before the text becomes part of a URL."""
    return _CID_PATTERN.fullmatch(cid) is not None


@attrs.define
class Gateways:
    """Gateways to read from, in at most `attempts` rounds with pauses of `pause_s` seconds."""

    http: httpx.AsyncClient
    urls: Sequence[str]
    attempts: int = MAX_GATEWAY_ATTEMPTS
    pause_s: float = GATEWAY_RETRY_PAUSE_S
    sleep: Sleep = anyio.sleep

    async def try_each(self, attempt: Callable[[str], Awaitable[T]], deadline: float = math.inf) -> T:
        """Call `attempt` with each gateway's address, until a call does not raise NotServed. Return that call's result.

        `deadline` is in the event loop's time. With a deadline, a round in which no gateway answered does not count,
        because this machine's network may be down. Raises NoGatewayServed."""
        failures: dict[str, NotServed] = {}
        remaining, rounds = list(self.urls), 0
        with anyio.CancelScope(deadline=deadline):
            while remaining and rounds < self.attempts:
                if failures:
                    await self.sleep(self.pause_s)
                for url in remaining:
                    try:
                        return await attempt(url)
                    except NotServed as failure:
                        failures[url] = failure
                if deadline == math.inf or any(failures[url].answered for url in remaining):
                    rounds += 1
                remaining = [url for url in remaining if failures[url].retryable]
        raise NoGatewayServed([f"{url}: {failure}" for url, failure in failures.items()], bool(remaining))

    async def get(self, url: str, on_piece: Callable[[bytes], Awaitable[object]]) -> None:
        """Read the content at an address of a gateway, and pass its pieces to `on_piece`. Raises NotServed."""
        try:
            with anyio.fail_after(_PIECE_TIMEOUT_S) as waiting:
                async with follow_redirects(self.http, url) as response:
                    status = response.status_code
                    if status != _OK_STATUS:
                        raise NotServed(
                            f"the gateway answered {status}",
                            status == _NOT_FOUND_STATUS or status >= _MIN_SERVER_ERROR_STATUS,
                        )
                    async with unencoded_pieces(response, MAX_CONTENT_BYTES) as pieces:
                        async for piece in pieces:
                            waiting.deadline = math.inf
                            await on_piece(piece)
                            waiting.deadline = anyio.current_time() + _PIECE_TIMEOUT_S
        except TimeoutError:
            raise NotServed(
                f"the gateway sent less than 64 KiB in {_PIECE_TIMEOUT_S:g} s", retryable=True, answered=False
            ) from None
        except httpx.TransportError as failed:
            raise NotServed(f"{type(failed).__name__}: {failed}", retryable=True, answered=False) from None
        except httpx.RequestError as failed:  # too many redirects, a foreign redirect, or an unacceptable answer
            raise NotServed(f"{type(failed).__name__}: {failed}", retryable=False) from None
