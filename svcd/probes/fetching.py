"""One bounded GET of a load probe: an answer that is late, long or no success is no reading."""

from typing import Final

import httpx
import trio

from svcd.http_pieces import read_pieces

_LONGEST: Final = 8 * 2**20  # a large server's /metrics has a few hundred KiB


class _TooLong(Exception):
    pass


async def fetch(client: httpx.AsyncClient, url: str, seconds: float) -> bytes | None:
    body = bytearray()

    def take(piece: bytes) -> bool:
        body.extend(piece)
        if len(body) > _LONGEST:
            raise _TooLong
        return False

    with trio.move_on_after(seconds):
        try:
            async with client.stream("GET", url) as response:
                if not response.is_success:
                    return None
                await read_pieces(response, take)
        except (httpx.RequestError, _TooLong):
            return None
        return bytes(body)
    return None
