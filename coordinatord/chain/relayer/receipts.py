"""Receipts of transactions, as a node reports them, and their confirmation by a second node."""

from collections.abc import Sequence
from typing import Final

import anyio
import attrs
import msgspec
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.relayed_calls import ReceiptLog
from coordinatord.chain.rpc.chain_data import Hash, Quantity
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_quantity, decode_result
from coordinatord.chain.rpc.errors import RpcError

log = structlog.get_logger(__name__)

# Time for another node to receive the block of a receipt.
_CATCH_UP_TIMEOUT_S: Final = 2.0
_RETRY_PAUSE_S: Final = 0.1


class _RawReceipt(msgspec.Struct):
    transactionHash: Hash  # noqa: N815 - the node's names
    blockNumber: Quantity  # noqa: N815
    blockHash: Hash  # noqa: N815
    status: str
    gasUsed: Quantity  # noqa: N815
    logs: list[ReceiptLog]


@attrs.frozen(slots=True)
class TxReceipt:
    tx_hash: bytes
    block_number: int
    block_hash: bytes
    succeeded: bool
    gas_used: int
    logs: tuple[ReceiptLog, ...] = attrs.field(repr=False)


async def read_receipts(rpc: Rpc, tx_hashes: Sequence[bytes]) -> list[TxReceipt]:
    """Return the receipts of these transactions. Skip transactions that are not mined."""
    answers = await rpc.batch([RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in tx_hashes])
    return [receipt for answer in answers for receipt in _decode_receipt(answer)]


async def read_receipts_and_count(rpc: Rpc, account: bytes, tx_hashes: Sequence[bytes]) -> tuple[list[TxReceipt], int]:
    """Return the receipts of the mined transactions, and the number of used nonces of `account`. Read both in
    one request, because an endpoint may spread requests over several nodes."""
    calls = [RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in tx_hashes]
    *answers, count = await rpc.batch([*calls, RpcCall("eth_getTransactionCount", ("0x" + account.hex(), "latest"))])
    if isinstance(count, RpcError):
        raise count
    found = [receipt for answer in answers for receipt in _decode_receipt(answer)]
    return found, decode_quantity(decode_result(count, str, "eth_getTransactionCount"))


def _decode_receipt(answer: msgspec.Raw | RpcError) -> list[TxReceipt]:
    """Return the receipt, or nothing while the transaction is not mined."""
    if isinstance(answer, RpcError):
        raise answer
    raw = decode_result(answer, _RawReceipt | None, "eth_getTransactionReceipt")  # type: ignore[arg-type] # a union is a type to msgspec
    return [] if raw is None else [_convert_receipt(raw)]


def _convert_receipt(raw: _RawReceipt) -> TxReceipt:
    return TxReceipt(
        bytes.fromhex(raw.transactionHash[2:]),
        decode_quantity(raw.blockNumber),
        bytes.fromhex(raw.blockHash[2:]),
        decode_quantity(raw.status) == 1,
        decode_quantity(raw.gasUsed),
        tuple(raw.logs),
    )


async def confirm_receipts(rpc: Rpc, receipts: Sequence[TxReceipt]) -> list[TxReceipt]:
    """Return the receipts if another node reports the same receipts, or if no other node answers. Raise Retryable while
    the other nodes lack a receipt or report a different receipt. One agreeing node is enough."""
    others = rpc.other_nodes
    if not others or not receipts:
        return list(receipts)
    expected = {receipt.tx_hash: _comparable_part(receipt) for receipt in receipts}
    answered = contradicted = False
    deadline = anyio.current_time() + _CATCH_UP_TIMEOUT_S
    while True:
        for other in others:
            try:
                found = {
                    receipt.tx_hash: _comparable_part(receipt) for receipt in await read_receipts(other, list(expected))
                }
            except (Retryable, RpcError):
                continue
            answered = True
            contradicted |= any(expected[tx_hash] != other_receipt for tx_hash, other_receipt in found.items())
            if found == expected:
                metrics.nodes_agreed.labels("receipts").set(2)
                return list(receipts)
        if contradicted or anyio.current_time() >= deadline:
            break
        await anyio.sleep(_RETRY_PAUSE_S)
    if not answered:
        log.warning("receipts unconfirmed by a second node", receipts=len(receipts))
        return list(receipts)
    metrics.nodes_agreed.labels("receipts").set(0)
    problem = "reports different receipts than" if contradicted else "lacks the receipts of"
    raise Retryable("chain_unreachable", f"another node {problem} the relayer's node: waiting until two nodes agree")


def _comparable_part(receipt: TxReceipt) -> tuple[object, ...]:
    logs = [(log.address.lower(), tuple(log.topics), log.data) for log in receipt.logs]
    return receipt.block_hash, receipt.succeeded, receipt.gas_used, logs
