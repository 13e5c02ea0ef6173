"""Confirmation of receipts by a second node: where there are others, one node's word ends no relay."""

from collections.abc import Sequence
from typing import Final

import anyio
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.receipts import TxReceipt, receipts_of
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError

log = structlog.get_logger(__name__)

_CATCHING_UP: Final = 2.0  # seconds that another node gets to have the block of a receipt, too
_PAUSE: Final = 0.1


async def confirmed(rpc: Rpc, receipts: Sequence[TxReceipt]) -> list[TxReceipt]:
    """Those receipts, all told alike by another node of the chain; where there is none that answers, as they are.

    Retryable while the others have none of it or tell something else: the relays stay signed, and the next look asks
    again. Any other node that agrees will do: with three, two decide.
    """
    others = rpc.others
    if not others or not receipts:
        return list(receipts)
    wanted = {receipt.tx_hash: _decisive(receipt) for receipt in receipts}
    answered = contradicted = False
    until = anyio.current_time() + _CATCHING_UP
    while True:
        for other in others:
            try:
                found = {receipt.tx_hash: _decisive(receipt) for receipt in await receipts_of(other, list(wanted))}
            except (Retryable, RpcError):
                continue
            answered = True
            contradicted |= any(wanted[tx_hash] != told for tx_hash, told in found.items())
            if found == wanted:
                metrics.nodes_disagree.labels("receipts").set(0)
                return list(receipts)
        if contradicted or anyio.current_time() >= until:
            break
        await anyio.sleep(_PAUSE)
    if not answered:
        log.warning("receipts of one node alone", receipts=len(receipts))
        return list(receipts)
    metrics.nodes_disagree.labels("receipts").set(1)
    told = "tells other receipts" if contradicted else "has not got the receipts"
    raise Retryable("chain_unreachable", f"another node {told} that this one tells: waiting until two agree")


def _decisive(receipt: TxReceipt) -> tuple[object, ...]:
    logs = [(log.address.lower(), tuple(log.topics), log.data) for log in receipt.logs]
    return receipt.block_hash, receipt.succeeded, receipt.gas_used, logs
