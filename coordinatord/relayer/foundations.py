"""What a refusal stands on: a chain that has what the refused relay builds on.

Accounts see a reorganisation one after the other, and a node may be behind the one that another account asks. Until
the older relays of a subject stand in the chain that is simulated on, its refusal of the next one says nothing.
"""

from collections.abc import Sequence

from coordinatord.chain.rpc import Rpc
from coordinatord.relayer.heads import WINDOW, blocks_by_number
from coordinatord.store import relay_outcomes, relay_txs
from coordinatord.store.database import Connection


async def unfounded(connection: Connection, rpc: Rpc, chain_id: int, refused: Sequence[int]) -> set[int]:
    """Those of these refused relays that may pass yet: those behind an older one that is under way; and all of them
    while the node has not got a block that an account's transactions are recorded in. Its newest one tells: a
    reorganisation takes the highest blocks first."""
    if not refused:
        return set()
    newest = await relay_txs.newest_blocks(connection, chain_id, WINDOW)
    blocks = await blocks_by_number(rpc, [number for number, _ in newest])
    there = ["" if block is None else block.hash for block in blocks]
    if there != ["0x" + block_hash.hex() for _, block_hash in newest]:
        return set(refused)
    return await relay_outcomes.behind_undecided(connection, refused)
