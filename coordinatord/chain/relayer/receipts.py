"""Receipts: of a whole block at once, or of single hashes."""

from collections.abc import Collection, Sequence
from typing import Final

import anyio
import attrs
import msgspec
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.logs import ReceiptLog
from coordinatord.chain.rpc.client import Hash, Quantity, Rpc, RpcCall, decode_result, quantity
from coordinatord.chain.rpc.errors import Meaning, RpcError

log = structlog.get_logger(__name__)

# Up to so many, asking for each is less work for the node and for us than the block's receipts.
_FEW: Final = 4
_CATCHING_UP: Final = 2.0  # seconds that another node gets to have the block of a receipt, too
_PAUSE: Final = 0.1


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


@attrs.frozen(slots=True)
class WantedReceipts:
    """Transactions of ours that this block lists."""

    number: int
    block_hash: str
    hashes: Collection[bytes]


async def receipts_in_blocks(rpc: Rpc, blocks: Sequence[WantedReceipts]) -> list[TxReceipt]:
    """The receipts of what is wanted, all in one request; not those of another block of that number (a reorg)."""
    whole = [block for block in blocks if len(block.hashes) > _FEW]
    answers = await rpc.batch([RpcCall("eth_getBlockReceipts", (hex(block.number),)) for block in whole])
    single = [h for block in blocks if len(block.hashes) <= _FEW for h in block.hashes]
    found: list[TxReceipt] = []
    for block, answer in zip(whole, answers, strict=True):
        if not isinstance(answer, RpcError):
            found += map(_read, decode_result(answer, list[_RawReceipt], "eth_getBlockReceipts"))
        elif answer.meaning is Meaning.REFUSED:
            single += block.hashes  # an old node does not serve the method
        else:
            raise answer
    found += await receipts_of(rpc, single)
    block_of = {h: bytes.fromhex(block.block_hash[2:]) for block in blocks for h in block.hashes}
    return [receipt for receipt in found if block_of.get(receipt.tx_hash) == receipt.block_hash]


async def receipts_of(rpc: Rpc, hashes: Sequence[bytes]) -> list[TxReceipt]:
    """The receipts of those transactions that are mined."""
    answers = await rpc.batch([RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in hashes])
    return [receipt for answer in answers for receipt in _receipt(answer)]


async def receipts_and_count(rpc: Rpc, account: bytes, hashes: Sequence[bytes]) -> tuple[list[TxReceipt], int]:
    """The receipts of those that are mined, and how many nonces `account` has used, in one request: of many nodes
    behind one endpoint, one answers both."""
    calls = [RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in hashes]
    *answers, count = await rpc.batch([*calls, RpcCall("eth_getTransactionCount", ("0x" + account.hex(), "latest"))])
    if isinstance(count, RpcError):
        raise count
    found = [receipt for answer in answers for receipt in _receipt(answer)]
    return found, quantity(decode_result(count, str, "eth_getTransactionCount"))


def _receipt(answer: msgspec.Raw | RpcError) -> list[TxReceipt]:
    """None of it while the transaction is not mined."""
    if isinstance(answer, RpcError):
        raise answer
    raw = decode_result(answer, _RawReceipt | None, "eth_getTransactionReceipt")  # type: ignore[arg-type] # a union is a type to msgspec
    return [] if raw is None else [_read(raw)]


def _read(raw: _RawReceipt) -> TxReceipt:
    return TxReceipt(
        bytes.fromhex(raw.transactionHash[2:]),
        quantity(raw.blockNumber),
        bytes.fromhex(raw.blockHash[2:]),
        quantity(raw.status) == 1,
        quantity(raw.gasUsed),
        tuple(raw.logs),
    )


# One node's word ends nobody's relay where there are others: a second one must tell the same receipt.


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
