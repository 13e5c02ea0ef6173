"""Read a file block by block, from a gateway that serves blocks (`?format=raw`).

Each block is checked against its own id. So the check works for every division of a file into blocks.
"""

from collections.abc import AsyncGenerator
from typing import Final

import anyio
import httpx

from common.cid import Cid
from common.refusal import Refused
from common.unixfs_blocks import read_unixfs_block
from svc.wire.answers import MAX_CONTENT_BYTES, follow_redirects, read_response

# No known store uses larger blocks.
MAX_BLOCK_BYTES: Final = 4 << 20
# Maximum number of blocks in a file. A tree could otherwise contain any number of empty blocks.
_MAX_BLOCKS: Final = 1 << 16
_BLOCK_TIMEOUT_S: Final = 60.0
_OK_STATUS: Final = 200


async def read_file_by_blocks(http: httpx.AsyncClient, gateway: str, root: Cid) -> AsyncGenerator[bytes, None]:
    """Yield a file's content in order, in checked pieces.

    Raises Refused if a block does not match its id or does not belong to a file, and httpx.RequestError or TimeoutError
    if the gateway does not serve a block.
    """
    pending, length, blocks = [root], 0, 0
    while pending:
        cid = pending.pop()
        blocks += 1
        block = read_unixfs_block(cid, await _read_block(http, f"{gateway}/ipfs/{cid}?format=raw"))
        length += len(block.content)
        if length > MAX_CONTENT_BYTES or blocks + len(pending) + len(block.links) > _MAX_BLOCKS:
            raise Refused(f"a file must have at most {MAX_CONTENT_BYTES} bytes and {_MAX_BLOCKS} blocks")
        pending.extend(reversed(block.links))
        if block.content:
            yield block.content


async def _read_block(http: httpx.AsyncClient, url: str) -> bytes:
    with anyio.fail_after(_BLOCK_TIMEOUT_S):
        async with follow_redirects(http, url) as response:
            if response.status_code != _OK_STATUS:
                raise Refused(f"the gateway answered {response.status_code} to the request for a block")
            return (await read_response(response, MAX_BLOCK_BYTES)).content
