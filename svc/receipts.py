"""Create and check receipts. A receipt is a file that proves an ended job to a third party, from the chain's data."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common import canonical_json
from common.artifacts import event_topic, load_artifact
from common.contract_events import event_values
from common.inclusion.contents import BlockContents
from common.inclusion.node_values import read_bytes, read_bytes_list, read_objects
from common.receipt import (
    END_EVENTS,
    JobEvents,
    ReceiptMarket,
    VerifiedReceipt,
    find_order_signature,
    receipt_fields,
    verify_receipt,
)
from common.receipt_steps import build_step
from common.receipt_tab import TAB_FIELD
from common.refusal import Refused
from common.scalars import hex_of
from svc.chain.node import Chain
from svc.errors import ResultUnreadable
from svc.wire.json_rpc import Node

_JOB_REGISTRY: Final = load_artifact("JobRegistry")
_EVENT_NAMES: Final = {event_topic(_JOB_REGISTRY, name): name for name in ("JobPosted", "JobClaimed", *END_EVENTS)}
_END_TOPICS: Final = frozenset(event_topic(_JOB_REGISTRY, name) for name in END_EVENTS)


@attrs.frozen(slots=True)
class _JobEvent:
    """Decoded event of a job, with its log."""

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
    """Creates receipts from a node's data. Anyone can verify a receipt, so the node need not be trusted."""

    chain: Chain
    market: ReceiptMarket

    async def build_receipt(self, job_id: bytes, first_block: int, tab: dict[str, str] | None = None) -> bytes:
        """Return the receipt of a job that was posted in block `first_block` or later.

        `tab` is the result of `build_tab_member`, which adds a tab's transcript. Raises NodeFailed, or ResultUnreadable
        (`no_receipt` for a job that has not ended, `receipt_unproved` if a node's answers are inconsistent).
        """
        node = self.chain.nodes[0]
        try:
            found = await self._read_events(job_id, first_block)
            steps = [await _build_step(node, each) for each in found]
            events = JobEvents(
                found[0].values, found[1].values if len(found) == 3 else None, found[-1].values, found[-1].name
            )
            transaction = await node.call("eth_getTransactionByHash", found[0].transaction)
            call = read_bytes(transaction, "input") if isinstance(transaction, dict) else b""
            signature = find_order_signature(call, self.market, events.posted)
            if signature is None:
                raise Refused("the transaction that posted the job does not contain the owner's signature of the order")
            claims = receipt_fields(self.market, events, signature) | ({} if tab is None else {TAB_FIELD: tab})
            raw = canonical_json.canonical(claims | {"steps": steps}) + b"\n"
            verify_receipt(raw)  # never return a receipt that cannot be verified
        except Refused as refusal:
            message = f"cannot build a receipt of job {hex_of(job_id)}: {refusal.message}"
            raise ResultUnreadable(message, code="receipt_unproved", param=refusal.param) from None
        return raw

    async def _read_events(self, job_id: bytes, first_block: int) -> list[_JobEvent]:
        logs = await self.chain.logs(self.market.job_registry, [None, job_id], first_block, _END_TOPICS)
        found = [each for log in logs if (each := _event_from_log(log)) is not None]
        if not found or found[-1].name not in END_EVENTS:
            raise ResultUnreadable(
                f"job {hex_of(job_id)} has not ended on the chain and has no receipt yet", code="no_receipt"
            )
        if found[0].name != "JobPosted":
            raise Refused(
                f"the coordinator reports the job's post in block {first_block}, but the chain has no post of the job"
            )
        return found


async def _build_step(node: Node, event: _JobEvent) -> dict[str, Any]:
    block = await node.call("eth_getBlockByHash", event.block, True)
    if not isinstance(block, dict):
        raise Refused(f"the node has no block {event.block}")
    answer = await node.call("eth_getBlockReceipts", event.block)
    receipts = read_objects({"eth_getBlockReceipts": answer}, "eth_getBlockReceipts")
    at = [n for n, each in enumerate(receipts) if each.get("transactionHash") == event.transaction]
    if len(at) != 1:
        raise Refused(f"the node's block {event.block} does not contain transaction {event.transaction}")
    contents = BlockContents.of(block, receipts)
    for n, log in enumerate(read_objects(receipts[at[0]], "logs")):
        if all(event.log[name] == value for name, value in _log_fields(log).items()):
            return build_step(event.name, block, contents, at[0], n)
    raise Refused(f"the receipt of {event.transaction} does not contain the job's {event.name} event")


def _log_fields(log: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "address": read_bytes(log, "address"),
        "topics": read_bytes_list(log, "topics", 32),
        "data": read_bytes(log, "data"),
    }


def _event_from_log(log: Mapping[str, Any]) -> _JobEvent | None:
    """Return the job event in a log, or None if the log is not the post, claim or end of a job."""
    name = _EVENT_NAMES.get(log["topics"][0]) if log["topics"] else None
    return None if name is None else _JobEvent(name, event_values(_JOB_REGISTRY, name, log["topics"], log["data"]), log)


async def check_blocks(chain: Chain, receipt: VerifiedReceipt) -> None:
    """Compare the block hashes of a receipt with the nodes. Raises ResultUnreadable (`receipt_off_chain`)."""
    if (chain_id := await chain.chain_id()) != receipt.market.chain_id:
        raise _off_chain_error(
            f"the receipt is for chain {receipt.market.chain_id}, but the node follows chain {chain_id}"
        )
    head = await chain.head()
    for block in receipt.blocks:
        found = await chain.block_hash(block.number) if block.number <= head else None
        if found != block.hash:
            actual = f"the chain ends at block {head}" if found is None else f"the chain has {hex_of(found)}"
            raise _off_chain_error(f"block {block.number} is {hex_of(block.hash)} in the receipt; {actual}")


def check_hashes(known: Sequence[bytes], receipt: VerifiedReceipt) -> None:
    """Check that each block hash of a receipt is in `known`. Raises ResultUnreadable (`receipt_off_chain`)."""
    for block in receipt.blocks:
        if block.hash not in known:
            raise _off_chain_error(
                f"block {block.number} is {hex_of(block.hash)}, which is not one of the given hashes"
            )


def _off_chain_error(message: str) -> ResultUnreadable:
    return ResultUnreadable(message, code="receipt_off_chain")
