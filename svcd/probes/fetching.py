"""One bounded GET of a load probe: an answer that is late, long or no success is no reading."""

from typing import Final

import httpx
import trio

_LONGEST: Final = 8 * 2**20  # a large server's /metrics has a few hundred KiB


async def fetch(client: httpx.AsyncClient, url: str, seconds: float) -> bytes | None:
    body = bytearray()
    with trio.move_on_after(seconds):
        try:
            async with client.stream("GET", url) as response:
                if not response.is_success:
                    return None
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _LONGEST:
                        return None
        except httpx.RequestError:
            return None
        return bytes(body)
    return None
