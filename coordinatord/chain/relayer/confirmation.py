"""Confirmation of receipts by a second node, where there is one."""

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

# Time for another node to receive the block of a receipt.
_CATCH_UP_S: Final = 2.0
_PAUSE_S: Final = 0.1


async def confirmed(rpc: Rpc, receipts: Sequence[TxReceipt]) -> list[TxReceipt]:
    """Return the receipts if another node reports the same ones, or if no other node answers.

    Raise Retryable while the other nodes lack a receipt or report a different one. The relays then stay signed until
    the next check. One agreeing node is enough.
    """
    others = rpc.others
    if not others or not receipts:
        return list(receipts)
    wanted = {receipt.tx_hash: _decisive(receipt) for receipt in receipts}
    answered = contradicted = False
    until = anyio.current_time() + _CATCH_UP_S
    while True:
        for other in others:
            try:
                found = {receipt.tx_hash: _decisive(receipt) for receipt in await receipts_of(other, list(wanted))}
            except (Retryable, RpcError):
                continue
            answered = True
            contradicted |= any(wanted[tx_hash] != other_receipt for tx_hash, other_receipt in found.items())
            if found == wanted:
                metrics.nodes_disagree.labels("receipts").set(0)
                return list(receipts)
        if contradicted or anyio.current_time() >= until:
            break
        await anyio.sleep(_PAUSE_S)
    if not answered:
        log.warning("receipts unconfirmed by a second node", receipts=len(receipts))
        return list(receipts)
    metrics.nodes_disagree.labels("receipts").set(1)
    problem = "reports different receipts than" if contradicted else "lacks the receipts of"
    raise Retryable("chain_unreachable", f"another node {problem} the relayer's node: waiting until two agree")


def _decisive(receipt: TxReceipt) -> tuple[object, ...]:
    logs = [(log.address.lower(), tuple(log.topics), log.data) for log in receipt.logs]
    return receipt.block_hash, receipt.succeeded, receipt.gas_used, logs
