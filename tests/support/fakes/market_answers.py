"""Answers of the market in memory (`tests.support.fakes.market`), and scripts that replace them."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx

Body = dict[str, Any]
Script = Callable[[Callable[[], httpx.Response]], Awaitable[httpx.Response]]


def answer(status: int, body: object = None, *, retryable: bool = False) -> httpx.Response:
    headers = {"x-svc-retryable": "true" if retryable else "false"} if status >= 400 else {}
    return httpx.Response(status, json=body if body is not None else {}, headers=headers)


def error(
    status: int,
    code: str | None,
    kind: str = "invalid_request_error",
    *,
    param: str | None = None,
    retryable: bool = False,
) -> httpx.Response:
    envelope = {"error": {"message": "as the test wants it", "type": kind, "param": param, "code": code}}
    return answer(status, envelope, retryable=retryable)


def mined(**more: str) -> httpx.Response:
    return answer(201, {"tx_hash": "0x" + "ab" * 32, "status": "success", "block_number": "2"} | more)


def instead(response: httpx.Response) -> Script:
    """Answer this, without executing the request."""

    async def script(_: Callable[[], httpx.Response]) -> httpx.Response:
        return response

    return script


def unreached() -> Script:
    """Fail to connect, without executing the request."""

    async def script(_: Callable[[], httpx.Response]) -> httpx.Response:
        raise httpx.ConnectError("as the test wants it")

    return script


def lost() -> Script:
    """Execute the request and lose its answer."""

    async def script(perform: Callable[[], httpx.Response]) -> httpx.Response:
        perform()
        raise httpx.ReadError("as the test wants it")

    return script


def behind(**then: Any) -> Script:
    """Simulate a lagging index: a read returns these older field values."""

    async def script(perform: Callable[[], httpx.Response]) -> httpx.Response:
        return answer(200, {**perform().json(), **then})

    return script
