"""Read content as the blocks of its tree, from a gateway that serves blocks (`?format=raw`).

Each block is checked against its own id, so the check works with every layout.
"""

from collections.abc import AsyncGenerator
from typing import Final

import anyio
import httpx

from common.cid import Cid
from common.refusal import Refused
from common.unixfs_blocks import read_block
from svc.wire.answers import MAX_CONTENT_BYTES, followed, whole

# Larger than the blocks of any store.
MAX_BLOCK_BYTES: Final = 4 << 20
# Per file, because a tree may contain any number of empty nodes.
_MAX_BLOCKS: Final = 1 << 16
_BLOCK_TIMEOUT_S: Final = 60.0
_OK: Final = 200


async def content_of(http: httpx.AsyncClient, gateway: str, root: Cid) -> AsyncGenerator[bytes, None]:
    """Yield a file's content in order, every piece checked. Raise Refused if a block does not match its id or is not
    part of a file, httpx.RequestError or TimeoutError if a block is not served."""
    left, length, blocks = [root], 0, 0
    while left:
        cid = left.pop()
        blocks += 1
        block = read_block(cid, await _served(http, f"{gateway}/ipfs/{cid}?format=raw"))
        length += len(block.content)
        if length > MAX_CONTENT_BYTES or blocks + len(left) + len(block.links) > _MAX_BLOCKS:
            raise Refused(f"a file must have at most {MAX_CONTENT_BYTES} bytes in {_MAX_BLOCKS} blocks")
        left.extend(reversed(block.links))
        if block.content:
            yield block.content


async def _served(http: httpx.AsyncClient, url: str) -> bytes:
    with anyio.fail_after(_BLOCK_TIMEOUT_S):
        async with followed(http, url) as response:
            if response.status_code != _OK:
                raise Refused(f"status {response.status_code} for a block")
            return (await whole(response, MAX_BLOCK_BYTES)).content
