"""One bounded GET of a load probe: an answer that is late, long or no success is no reading."""

from typing import Final

import httpx
import trio

from svcd.http_pieces import LongAnswer, opened, read_whole

_LONGEST: Final = 8 * 2**20  # a large server's /metrics has a few hundred KiB


async def fetch(client: httpx.AsyncClient, url: str, seconds: float) -> bytes | None:
    with trio.move_on_after(seconds):
        try:
            async with opened(client, "GET", url) as response:
                return await read_whole(response, _LONGEST) if response.is_success else None
        except (httpx.RequestError, LongAnswer):
            return None
    return None
