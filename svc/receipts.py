"""Receipts: what the chain holds about a job that has ended, put into one file that a stranger can check."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common import strict_json
from common.artifacts import event_topic, load
from common.contract_events import event_values
from common.inclusion.contents import Contents
from common.inclusion.node_json import octets, octets_of, quantity
from common.receipt import ENDS, Events, ReceiptMarket, Verified, claims_of, order_signature_in, verified
from common.receipt_steps import step_of
from common.refusal import Refused
from common.scalars import hex_of
from svc.errors import ConnectionFailed, ResultUnreadable
from svc.receipt_node import Node

_JOBS: Final = load("JobRegistry")
_NAMES: Final = {event_topic(_JOBS, name): name for name in ("JobPosted", "JobClaimed", *ENDS)}
_WIDEST: Final = 50_000  # blocks of logs asked for at a time
_NARROWEST: Final = 500  # a node that refuses even so few is asked no further


@attrs.frozen(slots=True)
class _Found:
    """An event of the job, and where the node says that it stands."""

    name: str
    values: Mapping[str, Any]
    block: str
    transaction: str


@attrs.frozen
class Receipts:
    """Made from one node. What it says is proved by what is made of it, so that it need not be trusted for it."""

    node: Node
    market: ReceiptMarket

    async def make(self, job_id: bytes, first: int) -> bytes:
        """The file, of a job that was posted in block `first` or later. Raises ResultUnreadable with code `no_receipt`
        for a job that has not ended, and `receipt_unproved` where the node's answers do not hold together."""
        try:
            found = await self._events(job_id, first)
            steps = [await self._step(each) for each in found]
            events = Events(
                found[0].values, found[1].values if len(found) == 3 else None, found[-1].values, found[-1].name
            )
            said = await self.node.call("eth_getTransactionByHash", found[0].transaction)
            call = octets(said, "input") if isinstance(said, dict) else b""
            signature = order_signature_in(call, self.market, events.posted)
            if signature is None:
                raise Refused("the transaction that posted the job does not carry the owner's signature of the order")
            raw = strict_json.canonical(claims_of(self.market, events, signature) | {"steps": steps}) + b"\n"
            verified(raw)  # what could not be checked by others is not given out
        except Refused as refusal:
            message = f"no receipt of job {hex_of(job_id)}: {refusal.message}"
            raise ResultUnreadable(message, code="receipt_unproved", param=refusal.param) from None
        return raw

    async def _events(self, job_id: bytes, first: int) -> list[_Found]:
        last = quantity({"head": await self.node.call("eth_blockNumber")}, "head")
        found: list[_Found] = []
        width = _WIDEST
        while first <= last and not (found and found[-1].name in ENDS):
            until = min(last, first + width - 1)
            try:
                logs = await self._logs(job_id, first, until)
            except ConnectionFailed as refused:
                if refused.code != "node_refused" or width <= _NARROWEST:
                    raise
                width = max(_NARROWEST, width // 8)
                continue
            found += [each for log in logs if (each := _found(log)) is not None]
            first = until + 1
        if not found or found[-1].name not in ENDS:
            raise ResultUnreadable(
                f"job {hex_of(job_id)} has not ended on the chain: it has no receipt yet", code="no_receipt"
            )
        return found

    async def _logs(self, job_id: bytes, first: int, last: int) -> Sequence[Mapping[str, Any]]:
        wanted = {
            "address": hex_of(self.market.job_registry),
            "topics": [None, hex_of(job_id)],
            "fromBlock": hex(first),
            "toBlock": hex(last),
        }
        logs = await self.node.call("eth_getLogs", wanted)
        if not isinstance(logs, list) or not all(isinstance(log, dict) for log in logs):
            raise Refused("the node answered no list of logs")
        return logs

    async def _step(self, found: _Found) -> dict[str, Any]:
        block = await self.node.call("eth_getBlockByHash", found.block, True)
        receipts = await self.node.call("eth_getBlockReceipts", found.block)
        if not isinstance(block, dict) or not isinstance(receipts, list):
            raise Refused(f"the node has no block {found.block}, or none of its receipts")
        at = [n for n, each in enumerate(receipts) if each.get("transactionHash") == found.transaction]
        if len(at) != 1:
            raise Refused(f"the node's block {found.block} does not hold transaction {found.transaction}")
        contents = Contents.of(block, receipts)
        for n, log in enumerate(receipts[at[0]]["logs"]):
            ours = octets(log, "address") == self.market.job_registry and (each := _found(log)) is not None
            if ours and each is not None and (each.name, each.values["jobId"]) == (found.name, found.values["jobId"]):
                return step_of(found.name, block, contents, at[0], n)
        raise Refused(f"the receipt of {found.transaction} does not hold the job's {found.name}")


def _found(log: Mapping[str, Any]) -> _Found | None:
    """None for an event that is not of a job's life."""
    topics = [octets_of(topic, "topic", 32) for topic in log.get("topics") or ()]
    name = _NAMES.get(topics[0]) if topics else None
    if name is None:
        return None
    values = event_values(_JOBS, name, topics, octets(log, "data"))
    return _Found(name, values, hex_of(octets(log, "blockHash", 32)), hex_of(octets(log, "transactionHash", 32)))


async def check_blocks(node: Node, proved: Verified) -> None:
    """That the chain which a node follows has a receipt's blocks. Raises ResultUnreadable, `receipt_off_chain`."""
    chain_id = quantity({"chainId": await node.call("eth_chainId")}, "chainId")
    if chain_id != proved.market.chain_id:
        raise _off_chain(f"the receipt is of chain {proved.market.chain_id}, the node {node.name} follows {chain_id}")
    for block in proved.blocks:
        said = await node.call("eth_getBlockByNumber", hex(block.number), False)
        found = octets(said, "hash", 32) if isinstance(said, dict) else None
        if found != block.hash:
            there = "no such block" if found is None else hex_of(found)
            raise _off_chain(f"block {block.number} is {hex_of(block.hash)} in the receipt; {node.name} has {there}")


def check_hashes(known: Sequence[bytes], proved: Verified) -> None:
    """That a receipt's blocks are among those that the reader knows. Raises ResultUnreadable, `receipt_off_chain`."""
    for block in proved.blocks:
        if block.hash not in known:
            raise _off_chain(
                f"block {block.number} is {hex_of(block.hash)}, which is none of the hashes that were given"
            )


def _off_chain(message: str) -> ResultUnreadable:
    return ResultUnreadable(message, code="receipt_off_chain")
