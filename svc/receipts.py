"""Receipts: proofs of an ended job from the chain, in one file that a third party can check."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common import canonical_json
from common.artifacts import event_topic, load
from common.contract_events import event_values
from common.inclusion.contents import Contents
from common.inclusion.node_values import objects, octets, texts
from common.receipt import ENDS, Events, ReceiptMarket, VerifiedReceipt, claims_of, order_signature_in, verified
from common.receipt_steps import step_of
from common.refusal import Refused
from common.scalars import hex_of
from svc.chain.node import Chain
from svc.errors import ResultUnreadable
from svc.wire.json_rpc import Node

_JOBS: Final = load("JobRegistry")
_NAMES: Final = {event_topic(_JOBS, name): name for name in ("JobPosted", "JobClaimed", *ENDS)}
_ENDS: Final = frozenset(event_topic(_JOBS, name) for name in ENDS)


@attrs.frozen(slots=True)
class _JobEvent:
    """Event of the job, with its log."""

    name: str
    values: Mapping[str, Any]
    log: Mapping[str, Any]

    @property
    def block(self) -> str:
        return hex_of(self.log["block_hash"])

    @property
    def transaction(self) -> str:
        return hex_of(self.log["transaction"])


@attrs.frozen
class Receipts:
    """Creates receipts from nodes. The result proves itself, so the first node need not be trusted for blocks."""

    chain: Chain
    market: ReceiptMarket

    async def make(self, job_id: bytes, first: int) -> bytes:
        """Return the receipt of a job that was posted in block `first` or later.

        Raises ResultUnreadable with code `no_receipt` for a job that has not ended, and `receipt_unproved` if a node's
        answers are inconsistent; NodeFailed.
        """
        node = self.chain.nodes[0]
        try:
            found = await self._events(job_id, first)
            steps = [await _step(node, each) for each in found]
            events = Events(
                found[0].values, found[1].values if len(found) == 3 else None, found[-1].values, found[-1].name
            )
            transaction = await node.call("eth_getTransactionByHash", found[0].transaction)
            call = octets(transaction, "input") if isinstance(transaction, dict) else b""
            signature = order_signature_in(call, self.market, events.posted)
            if signature is None:
                raise Refused("the transaction that posted the job does not carry the owner's signature of the order")
            raw = canonical_json.canonical(claims_of(self.market, events, signature) | {"steps": steps}) + b"\n"
            verified(raw)  # never return a receipt that others could not verify
        except Refused as refusal:
            message = f"no receipt of job {hex_of(job_id)}: {refusal.message}"
            raise ResultUnreadable(message, code="receipt_unproved", param=refusal.param) from None
        return raw

    async def _events(self, job_id: bytes, first: int) -> list[_JobEvent]:
        logs = await self.chain.logs(self.market.job_registry, [None, job_id], first, _ENDS)
        found = [each for log in logs if (each := _job_event(log)) is not None]
        if not found or found[-1].name not in ENDS:
            raise ResultUnreadable(
                f"job {hex_of(job_id)} has not ended on the chain and has no receipt yet", code="no_receipt"
            )
        if found[0].name != "JobPosted":
            raise Refused(f"the chain has no post of the job from block {first} on, where the coordinator reports it")
        return found


async def _step(node: Node, event: _JobEvent) -> dict[str, Any]:
    block = await node.call("eth_getBlockByHash", event.block, True)
    if not isinstance(block, dict):
        raise Refused(f"the node has no block {event.block}")
    answer = await node.call("eth_getBlockReceipts", event.block)
    receipts = objects({"eth_getBlockReceipts": answer}, "eth_getBlockReceipts")
    at = [n for n, each in enumerate(receipts) if each.get("transactionHash") == event.transaction]
    if len(at) != 1:
        raise Refused(f"the node's block {event.block} does not contain transaction {event.transaction}")
    contents = Contents.of(block, receipts)
    for n, log in enumerate(objects(receipts[at[0]], "logs")):
        if all(event.log[name] == value for name, value in _log_fields(log).items()):
            return step_of(event.name, block, contents, at[0], n)
    raise Refused(f"the receipt of {event.transaction} does not contain the job's {event.name}")


def _log_fields(log: Mapping[str, Any]) -> dict[str, Any]:
    return {"address": octets(log, "address"), "topics": texts(log, "topics", 32), "data": octets(log, "data")}


def _job_event(log: Mapping[str, Any]) -> _JobEvent | None:
    """Return the event in a log, or None if the log is not an event of a job's life cycle."""
    name = _NAMES.get(log["topics"][0]) if log["topics"] else None
    return None if name is None else _JobEvent(name, event_values(_JOBS, name, log["topics"], log["data"]), log)


async def check_blocks(chain: Chain, receipt: VerifiedReceipt) -> None:
    """Check that the blocks of a receipt are on the nodes' chain. Raises ResultUnreadable (`receipt_off_chain`)."""
    if (chain_id := await chain.chain_id()) != receipt.market.chain_id:
        raise _off_chain(f"the receipt is of chain {receipt.market.chain_id}, the node follows {chain_id}")
    head = await chain.head()
    for block in receipt.blocks:
        found = await chain.block_hash(block.number) if block.number <= head else None
        if found != block.hash:
            actual = f"the chain ends at block {head}" if found is None else f"the chain has {hex_of(found)}"
            raise _off_chain(f"block {block.number} is {hex_of(block.hash)} in the receipt; {actual}")


def check_hashes(known: Sequence[bytes], receipt: VerifiedReceipt) -> None:
    """Check that the blocks of a receipt are among the given hashes. Raises ResultUnreadable (`receipt_off_chain`)."""
    for block in receipt.blocks:
        if block.hash not in known:
            raise _off_chain(f"block {block.number} is {hex_of(block.hash)}, which is not one of the given hashes")


def _off_chain(message: str) -> ResultUnreadable:
    return ResultUnreadable(message, code="receipt_off_chain")
