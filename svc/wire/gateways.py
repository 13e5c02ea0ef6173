"""Reads of content by its id from storage gateways, without credentials.

A round tries each gateway in turn. Another round follows if a gateway failed to answer, or answered 404 or 5xx, because
the content may be new. Gateways with any other answer are left out of it.
"""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio
import attrs
import httpx

from svc.core.retries import GATEWAY_ATTEMPTS, GATEWAY_PAUSE_S
from svc.wire.answers import MAX_CONTENT_BYTES, followed, pieces_of
from svc.wire.transport import Sleep

_OK: Final = 200
_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500
_CID: Final = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)
# For each 64 KiB, against gateways that send a byte at a time.
_PIECE_TIMEOUT_S: Final = 180.0

T = TypeVar("T")


@attrs.frozen(slots=True, eq=False)
class NotServed(Exception):
    """A gateway did not serve the content. `may_come`: it may serve it later. `answered`: there was an answer."""

    detail: str
    may_come: bool
    answered: bool = True

    def __str__(self) -> str:
        return self.detail


@attrs.frozen(slots=True, eq=False)
class NoGateway(Exception):
    """No gateway served the content. `may_come`: a gateway may serve it later."""

    failures: Sequence[str]
    may_come: bool

    def __str__(self) -> str:
        return "; ".join(self.failures) or "no gateway answered in time"


def is_content_id(cid: str) -> bool:
    """Return whether a text can be a content id. An owner may post any text, and the text becomes a path."""
    return _CID.fullmatch(cid) is not None


@attrs.define
class Gateways:
    """Gateways, which are tried in up to `attempts` rounds, `pause` seconds apart."""

    http: httpx.AsyncClient
    urls: Sequence[str]
    attempts: int = GATEWAY_ATTEMPTS
    pause: float = GATEWAY_PAUSE_S
    sleep: Sleep = anyio.sleep

    async def first(self, attempt: Callable[[str], Awaitable[T]], deadline: float = math.inf) -> T:
        """Call `attempt` with each gateway's address. Return the first result without NotServed.

        With a `deadline`, in the event loop's time, a round without any answer does not count: the network of this
        machine may be down. Raises NoGateway."""
        failures: dict[str, NotServed] = {}
        left, rounds = list(self.urls), 0
        with anyio.CancelScope(deadline=deadline):
            while left and rounds < self.attempts:
                if failures:
                    await self.sleep(self.pause)
                for url in left:
                    try:
                        return await attempt(url)
                    except NotServed as failure:
                        failures[url] = failure
                if deadline == math.inf or any(failures[url].answered for url in left):
                    rounds += 1
                left = [url for url in left if failures[url].may_come]
        raise NoGateway([f"{url}: {failure}" for url, failure in failures.items()], bool(left))

    async def get(self, url: str, take: Callable[[bytes], Awaitable[object]]) -> None:
        """Read the content at an address of a gateway, and pass its pieces to `take`. Raises NotServed."""
        try:
            with anyio.fail_after(_PIECE_TIMEOUT_S) as waiting:
                async with followed(self.http, url) as response:
                    status = response.status_code
                    if status != _OK:
                        raise NotServed(f"status {status}", status == _NOT_FOUND or status >= _SERVER_ERROR)
                    async with pieces_of(response, MAX_CONTENT_BYTES) as pieces:
                        async for piece in pieces:
                            waiting.deadline = math.inf
                            await take(piece)
                            waiting.deadline = anyio.current_time() + _PIECE_TIMEOUT_S
        except TimeoutError:
            raise NotServed(f"no 64 KiB within {_PIECE_TIMEOUT_S:g} s", may_come=True, answered=False) from None
        except httpx.TransportError as failed:
            raise NotServed(f"{type(failed).__name__}: {failed}", may_come=True, answered=False) from None
        except httpx.RequestError as failed:  # endless redirects, redirects elsewhere, encodings
            raise NotServed(f"{type(failed).__name__}: {failed}", may_come=False) from None
