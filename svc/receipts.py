"""Receipts: what the chain holds about a job that has ended, put into one file that a stranger can check."""

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
class _Found:
    """An event of the job, and where the nodes say that it stands."""

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
    """Made from nodes. What they say is proved by what is made of it, so that they need not be trusted for it: blocks
    are asked of the first alone."""

    chain: Chain
    market: ReceiptMarket

    async def make(self, job_id: bytes, first: int) -> bytes:
        """The file, of a job that was posted in block `first` or later. Raises ResultUnreadable with code `no_receipt`
        for a job that has not ended, and `receipt_unproved` where a node's answers do not hold together; NodeFailed."""
        node = self.chain.nodes[0]
        try:
            found = await self._events(job_id, first)
            steps = [await _step(node, each) for each in found]
            events = Events(
                found[0].values, found[1].values if len(found) == 3 else None, found[-1].values, found[-1].name
            )
            said = await node.call("eth_getTransactionByHash", found[0].transaction)
            call = octets(said, "input") if isinstance(said, dict) else b""
            signature = order_signature_in(call, self.market, events.posted)
            if signature is None:
                raise Refused("the transaction that posted the job does not carry the owner's signature of the order")
            raw = canonical_json.canonical(claims_of(self.market, events, signature) | {"steps": steps}) + b"\n"
            verified(raw)  # what could not be checked by others is not given out
        except Refused as refusal:
            message = f"no receipt of job {hex_of(job_id)}: {refusal.message}"
            raise ResultUnreadable(message, code="receipt_unproved", param=refusal.param) from None
        return raw

    async def _events(self, job_id: bytes, first: int) -> list[_Found]:
        logs = await self.chain.logs(self.market.job_registry, [None, job_id], first, _ENDS)
        found = [each for log in logs if (each := _found(log)) is not None]
        if not found or found[-1].name not in ENDS:
            raise ResultUnreadable(
                f"job {hex_of(job_id)} has not ended on the chain: it has no receipt yet", code="no_receipt"
            )
        if found[0].name != "JobPosted":
            raise Refused(f"the chain has no post of it from block {first} on, where the coordinator says that it is")
        return found


async def _step(node: Node, found: _Found) -> dict[str, Any]:
    block = await node.call("eth_getBlockByHash", found.block, True)
    if not isinstance(block, dict):
        raise Refused(f"the node has no block {found.block}")
    answer = await node.call("eth_getBlockReceipts", found.block)
    receipts = objects({"eth_getBlockReceipts": answer}, "eth_getBlockReceipts")
    at = [n for n, each in enumerate(receipts) if each.get("transactionHash") == found.transaction]
    if len(at) != 1:
        raise Refused(f"the node's block {found.block} does not hold transaction {found.transaction}")
    contents = Contents.of(block, receipts)
    for n, log in enumerate(objects(receipts[at[0]], "logs")):
        if all(found.log[name] == value for name, value in _said(log).items()):
            return step_of(found.name, block, contents, at[0], n)
    raise Refused(f"the receipt of {found.transaction} does not hold the job's {found.name}")


def _said(log: Mapping[str, Any]) -> dict[str, Any]:
    return {"address": octets(log, "address"), "topics": texts(log, "topics", 32), "data": octets(log, "data")}


def _found(log: Mapping[str, Any]) -> _Found | None:
    """None for an event that is not of a job's life."""
    name = _NAMES.get(log["topics"][0]) if log["topics"] else None
    return None if name is None else _Found(name, event_values(_JOBS, name, log["topics"], log["data"]), log)


async def check_blocks(chain: Chain, proved: VerifiedReceipt) -> None:
    """That the chain which the nodes follow has a receipt's blocks. Raises ResultUnreadable, `receipt_off_chain`."""
    if (chain_id := await chain.chain_id()) != proved.market.chain_id:
        raise _off_chain(f"the receipt is of chain {proved.market.chain_id}, the node follows {chain_id}")
    head = await chain.head()
    for block in proved.blocks:
        found = await chain.block_hash(block.number) if block.number <= head else None
        if found != block.hash:
            there = f"the chain ends at block {head}" if found is None else f"the chain has {hex_of(found)}"
            raise _off_chain(f"block {block.number} is {hex_of(block.hash)} in the receipt; {there}")


def check_hashes(known: Sequence[bytes], proved: VerifiedReceipt) -> None:
    """That a receipt's blocks are among those that the reader knows. Raises ResultUnreadable, `receipt_off_chain`."""
    for block in proved.blocks:
        if block.hash not in known:
            raise _off_chain(
                f"block {block.number} is {hex_of(block.hash)}, which is none of the hashes that were given"
            )


def _off_chain(message: str) -> ResultUnreadable:
    return ResultUnreadable(message, code="receipt_off_chain")
