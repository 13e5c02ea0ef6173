"""Wait until a service of the market answers again."""

from collections.abc import Awaitable, Callable

import asyncpg
import httpx

from devnet.postgres import Postgres
from tests.soak.plain_http import plain_http

Ready = Callable[[], Awaitable[bool]]


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
