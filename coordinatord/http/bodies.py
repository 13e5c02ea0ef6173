"""Read request bodies within the route's size limit, a minimum rate and a memory budget."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
from anyio import to_thread

from common.api.fields import parse_request_json
from common.daemon.asgi import RawHeaders, Receive, first_header
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http import responses
from coordinatord.http.responses import Response

# Time before the minimum rate applies, for connections that start slowly.
_MIN_RATE_GRACE_S: Final = 5.0
# Larger bodies are parsed in a thread, so that parsing does not block the event loop.
_MAX_INLINE_PARSE_BYTES: Final = 1 << 16


class ClientDisconnected(Exception):
    """Error for a client that disconnected before its request or the response was complete. No response can be sent."""


@attrs.frozen(slots=True)
class UnacceptableBody(Exception):
    """Error for a body that is too large or arrives too slowly. `response` is sent to the client."""

    response: Response


def reject_compressed_body(headers: RawHeaders) -> None:
    """Raise Refused for a compressed body, because such a body may decode to any size."""
    if first_header(headers, b"content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused("the request body must not be compressed: omit the header content-encoding")


class BodyBudget:
    """Limit on the memory of request bodies in this process, in total and per caller.

    Without the limit per caller, one client with unfinished bodies could use up the whole budget.
    """

    def __init__(self, max_bytes: int, max_caller_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_caller_bytes = max_bytes if max_caller_bytes is None else max_caller_bytes
        self._reserved = 0
        # Bytes reserved by each caller. Callers without reserved bytes have no entry.
        self._reserved_by_caller: dict[str, int] = {}

    @asynccontextmanager
    async def open_share(self, caller: str) -> "AsyncIterator[BudgetShare]":
        share = BudgetShare(self, caller)
        try:
            yield share
        finally:
            self._release_bytes(caller, share.reserved)

    def reserve_bytes(self, caller: str, size: int) -> None:
        reserved_by_caller = self._reserved_by_caller.get(caller, 0) + size
        if self._reserved + size > self._max_bytes or reserved_by_caller > self._max_caller_bytes:
            raise Retryable("busy", "the memory for request bodies is used up; try again later", retry_after=1)
        self._reserved += size
        self._reserved_by_caller[caller] = reserved_by_caller

    def _release_bytes(self, caller: str, size: int) -> None:
        remaining = self._reserved_by_caller.pop(caller, 0) - size
        if remaining:
            self._reserved_by_caller[caller] = remaining
        self._reserved -= size


class BudgetShare:
    """Bytes of the budget that one request has reserved. The bytes are released when the request ends."""

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self.reserved = 0

    def reserve_bytes(self, size: int) -> None:
        self._budget.reserve_bytes(self._caller, size)
        self.reserved += size


@attrs.frozen(slots=True)
class BodyReader:
    """Reads request bodies. `timeout_s` limits the time for the whole body, `stall_timeout_s` each wait for bytes."""

    timeout_s: float
    min_bytes_per_s: int
    stall_timeout_s: float = 10.0
    clock: Callable[[], float] = time.monotonic

    async def read(self, receive: Receive, headers: RawHeaders, max_bytes: int, share: BudgetShare) -> bytes:
        """Return the whole body. Raise UnacceptableBody, Refused or ClientDisconnected. Raise Retryable when the memory
        budget is used up."""
        reject_compressed_body(headers)
        declared = first_header(headers, b"content-length")
        if declared.isdecimal() and int(declared) > max_bytes:
            raise UnacceptableBody(responses.body_too_large(max_bytes))
        try:
            with anyio.fail_after(self.timeout_s):
                return await self._read_pieces(receive, max_bytes, share)
        except TimeoutError:
            raise UnacceptableBody(responses.body_too_slow()) from None

    async def _read_pieces(self, receive: Receive, max_bytes: int, share: BudgetShare) -> bytes:
        pieces: list[bytes] = []
        size, started = 0, self.clock()
        while True:
            with anyio.fail_after(self.stall_timeout_s):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > max_bytes:
                raise UnacceptableBody(responses.body_too_large(max_bytes))
            share.reserve_bytes(len(piece))
            pieces.append(piece)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            elapsed = self.clock() - started
            if elapsed > _MIN_RATE_GRACE_S and size < (elapsed - _MIN_RATE_GRACE_S) * self.min_bytes_per_s:
                raise UnacceptableBody(responses.body_too_slow())


async def parse_body(raw: bytes) -> dict[str, object]:
    """Parse a request body. Raise Refused unless the body is a JSON object."""
    value = (
        await to_thread.run_sync(parse_request_json, raw)
        if len(raw) > _MAX_INLINE_PARSE_BYTES
        else parse_request_json(raw)
    )
    if not isinstance(value, dict):
        raise Refused("the body must be a JSON object")
    return value
