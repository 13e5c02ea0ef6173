"""What a relay builds on: the older ones of its subject, which another account may have relayed.

Accounts see a reorganisation one after the other, and a node may be behind the one that another account asks. Until
the older ones stand in the chain that is simulated on, its refusal says nothing.
"""

from collections.abc import Sequence

from coordinatord.chain.rpc import Rpc
from coordinatord.relayer.heads import WINDOW, blocks_by_number
from coordinatord.store import relay_outcomes
from coordinatord.store.database import Connection


async def unfounded(connection: Connection, rpc: Rpc, relay_ids: Sequence[int]) -> set[int]:
    """Those of these relays that may pass yet: an older one of their subject is to be decided, or is recorded as mined
    in a block that this node has not got."""
    if not relay_ids:
        return set()
    found = await relay_outcomes.foundations(connection, relay_ids, WINDOW)
    recorded = {one.block_number: one.block_hash for one in found.values() if one is not None}
    blocks = await blocks_by_number(rpc, list(recorded))
    there = {number: block.hash for number, block in zip(recorded, blocks, strict=True) if block is not None}
    return {
        relay_id
        for relay_id, one in found.items()
        if one is None or there.get(one.block_number) != "0x" + one.block_hash.hex()
    }
