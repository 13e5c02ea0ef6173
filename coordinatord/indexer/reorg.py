"""Where the node's chain and the index's part."""

from typing import Final

from coordinatord.indexer.evidence import lied
from coordinatord.indexer.fetch import Source
from coordinatord.store.database import Connection
from coordinatord.store.index.journal import KeptBlock, kept_blocks

_STEP: Final = 16  # headers asked for at once; most reorgs are shallower


async def common_ancestor(connection: Connection, source: Source, upto: int) -> KeptBlock | None:
    """The highest block at or below `upto` that is both indexed and the node's; None if all kept ones differ.

    Raises Retryable unless the node's headers hang together from there up: an index is not taken back on hearsay.
    """
    child_parent: str | None = None
    while kept := await kept_blocks(connection, upto, _STEP):
        headers = await source.headers(kept[-1].number, kept[0].number)
        if child_parent is not None and headers[-1].hash != child_parent:
            raise lied(f"block {kept[0].number} is not the parent of the block after it")
        for block, header in zip(kept, reversed(headers), strict=True):
            if bytes.fromhex(header.hash[2:]) == block.hash:
                return block
        child_parent = headers[0].parent_hash
        upto = kept[-1].number - 1
    return None
