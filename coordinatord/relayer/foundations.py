"""What a refusal stands on: a chain that has what the refused relay builds on.

Accounts see a reorganisation one after the other, and a node may be behind the one that another account asks. Until
the older relays of a subject stand in the chain that is simulated on, its refusal of the next one says nothing.
"""

from collections.abc import Sequence
from typing import Final

from coordinatord.chain.rpc import Rpc
from coordinatord.relayer.heads import WINDOW, blocks_by_number
from coordinatord.relayer.term import role_of
from coordinatord.store import relay_outcomes, relay_txs
from coordinatord.store.database import Connection
from coordinatord.store.relay_txs import NewestBlock
from coordinatord.store.roles import is_held

_RETIRED_AFTER: Final = 600.0  # seconds: a process that restarts, or a new one, is there long before


async def unfounded(connection: Connection, rpc: Rpc, chain_id: int, refused: Sequence[int]) -> set[int]:
    """Those of these refused relays that may pass yet: those behind an older one that is under way; and all of them
    while the node has not got a block that an account's transactions are recorded in. Its newest one tells: a
    reorganisation takes the highest blocks first."""
    if not refused:
        return set()
    newest = await relay_txs.newest_blocks(connection, chain_id, WINDOW)
    blocks = await blocks_by_number(rpc, [block.number for block in newest])
    for block, there in zip(newest, blocks, strict=True):
        stands = there is not None and there.hash == "0x" + block.hash.hex()
        if not stands and not await _is_retired(connection, chain_id, block):
            return set(refused)
    return await relay_outcomes.behind_undecided(connection, refused)


async def _is_retired(connection: Connection, chain_id: int, newest: NewestBlock) -> bool:
    """Nobody relays from the account, and has not for a while: nobody will see that its block is gone, and waiting for
    that would hold every refusal back."""
    return newest.quiet > _RETIRED_AFTER and not await is_held(connection, role_of(chain_id, newest.account))
