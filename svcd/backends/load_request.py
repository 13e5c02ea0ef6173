"""Send a load probe's GET request, with limits on time and size."""

from typing import Final

import httpx
import trio

from svc.wire.answers import open_response, read_body

# A response of /metrics from a large server has a few hundred KiB.
MAX_ANSWER_BYTES: Final = 2 * 2**20


async def fetch_body(client: httpx.AsyncClient, url: str, timeout_s: float) -> bytes | None:
    """Return the body, or None if the response is late, too long or not a success."""
    with trio.move_on_after(timeout_s):
        try:
            async with open_response(client, "GET", url) as response:
                return await read_body(response, MAX_ANSWER_BYTES) if response.is_success else None
        except httpx.RequestError:
            return None
    return None
