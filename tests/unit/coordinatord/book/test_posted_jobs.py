"""Terms of a job that the index lacks are read from the chain's logs, newest first, up to a limit."""

from typing import Any

import attrs
import pytest

from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.storage.database.batched_reads import BatchedReads
from tests.support.fakes.chain import ADDRESSES, BOOK, DECODER
from tests.support.fakes.event_logs import log_of
from tests.support.fakes.rpc_node import RpcFault, RpcNode

pytestmark = pytest.mark.anyio

JOB = b"\x07" * 32
POSTED = contract_events.JobPosted(
    JOB, b"\xaa" * 20, 1, b"\xcc" * 32, 60, 10, 20, 30, 40, 0, 9, 250, 3, "bafk", b"\1" * 65
)  # fmt: skip


@attrs.define
class Node(RpcNode):
    """A node with one posted job in one block. It records its requests."""

    posted_in: int = 950
    head: int = 1000
    widest: int = 10**9
    exists: bool = True
    log: dict[str, Any] = attrs.field(factory=lambda: log_of(POSTED, ADDRESSES))
    ranges: list[tuple[int, int]] = attrs.field(factory=list)

    def answer(self, method: str, params: list[Any]) -> Any:
        match method, params:
            case "eth_blockNumber", _:
                return hex(self.head)
            case "eth_call", _:
                return "0x" + bytes(31).hex() + ("01" if self.exists else "00") + bytes(128).hex()
            case "eth_getLogs", [{"fromBlock": first, "toBlock": last, "topics": [_, job]}]:
                assert job == "0x" + JOB.hex()
                first, last = int(first, 16), int(last, 16)
                if last - first + 1 > self.widest:
                    return RpcFault({"code": -32005, "message": "query exceeds max block range 100"})
                self.ranges.append((first, last))
                place = {"blockNumber": hex(self.posted_in), "blockHash": "0x" + "00" * 32, "logIndex": "0x0"}
                return [self.log | place] if first <= self.posted_in <= last else []
        raise AssertionError(method)


def posted_jobs(node: Node, *, max_range_blocks: int = 40, first_block: int = 1) -> PostedJobs:
    async def unknown(_: None, keys: list[bytes]) -> dict[bytes, None]:
        return dict.fromkeys(keys)

    registry = JobRegistry(node.rpc(), BOOK.job_registry)
    return PostedJobs(registry, DECODER, first_block, max_range_blocks, BatchedReads(None, unknown))


async def test_unindexed_job_is_found_in_the_newest_blocks_first() -> None:
    node = Node()
    found = await posted_jobs(node).find(JOB)
    assert found is not None
    assert (found.posted.owner, found.payment) == (POSTED.owner, POSTED.pay_sig)
    assert attrs.astuple(found.posted.order) == (b"\xcc" * 32, 1, 60, 10, 20, 30, 40, 0, 9)
    assert (found.posted.terms.fee_bps, found.posted.terms.gas_fee) == (250, 3)
    assert node.ranges == [(961, 1000), (921, 960)]


async def test_job_that_the_chain_lacks_too_is_not_searched_for() -> None:
    node = Node(exists=False)
    assert await posted_jobs(node).find(JOB) is None
    assert node.ranges == []


@pytest.mark.parametrize(("first_block", "ranges"), [(1, 24), (900, 3)])
async def test_search_ends_at_the_deployment_or_after_24_ranges(first_block: int, ranges: int) -> None:
    node = Node(posted_in=0)
    with pytest.raises(Retryable) as trouble:
        await posted_jobs(node, first_block=first_block).find(JOB)
    assert trouble.value.kind == "not_ready"
    assert len(node.ranges) == ranges


async def test_range_that_the_node_finds_too_wide_is_narrowed() -> None:
    node = Node(widest=10)
    assert await posted_jobs(node).find(JOB) is not None
    assert node.ranges[0] == (991, 1000)


async def test_log_of_another_job_is_not_believed() -> None:
    node = Node(log=log_of(contract_events.JobPosted(b"\x08" * 32, *attrs_of(POSTED)[1:]), ADDRESSES))
    with pytest.raises(Retryable) as trouble:
        await posted_jobs(node).find(JOB)
    assert trouble.value.kind == "chain_unreachable"


def attrs_of(event: contract_events.JobPosted) -> tuple[Any, ...]:
    return tuple(getattr(event, name) for name in event.__struct_fields__)
