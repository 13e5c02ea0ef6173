"""One bounded GET of a load probe."""

from typing import Final

import httpx
import trio

from svc.wire.answers import body_of, opened

# The /metrics of a large server has a few hundred KiB.
MAX_ANSWER_BYTES: Final = 2 * 2**20


async def fetch(client: httpx.AsyncClient, url: str, seconds: float) -> bytes | None:
    """Return the body, or None if the answer is late, too long or not a success."""
    with trio.move_on_after(seconds):
        try:
            async with opened(client, "GET", url) as response:
                return await body_of(response, MAX_ANSWER_BYTES) if response.is_success else None
        except httpx.RequestError:
            return None
    return None
