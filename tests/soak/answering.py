"""HTTP to services of the market: short-lived clients, waits until a service answers, and counts of answers."""

import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
import httpx

from devnet.postgres import Postgres
from tests.soak.timeline import Timeline

Ready = Callable[[], Awaitable[bool]]
_NOBODY_TRUSTED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# A market under faults may be too busy, and then answers with these.
_TROUBLE: Final = {429, 503}


def plain_http(base_url: str = "", *, timeout: float = 30) -> httpx.AsyncClient:  # the client's own, per request
    """Return a client that loads no certificates, which takes time for thousands of clients."""
    return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=timeout, verify=_NOBODY_TRUSTED)


def answers_ok(url: str) -> Ready:
    async def ready() -> bool:
        status = await _status(url)
        return status is not None and 200 <= status < 300

    return ready


def listens(url: str) -> Ready:
    async def ready() -> bool:
        return await _status(url) is not None

    return ready


def accepts_sql(server: Postgres) -> Ready:
    async def ready() -> bool:
        try:
            await server.execute("select 1")
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    return ready


async def _status(url: str) -> int | None:
    async with plain_http(timeout=5) as client:
        try:
            return (await client.get(url)).status_code
        except httpx.TransportError:
            return None


def counted(answer: httpx.Response, timeline: Timeline, right: set[int]) -> str:
    """Return status and code. Complain if the status is neither in `right` nor a valid "not now"."""
    if answer.status_code not in right | _TROUBLE:
        told = (
            f"{answer.request.method} {answer.request.url.path} was answered {answer.status_code}: {answer.text[:300]}"
        )
        timeline.complain(told)
    if answer.is_success or not answer.content:
        return str(answer.status_code)
    error = answer.json().get("error", {})
    return f"{answer.status_code} {error.get('code') or error.get('type') or ''}".strip()
