"""What the book reads from the chain: funds of owners, and terms of jobs that the index lacks."""

from typing import Any

import anyio
import attrs
import pytest

from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.batched_reads import BatchedReads
from tests.support.fakes.chain import ADDRESSES, BOOK, DECODER
from tests.support.fakes.event_logs import log_of
from tests.support.fakes.rpc_node import RpcFault, RpcNode
from tests.unit.coordinatord.book.polling import HERE, NEXT, POOR, RICH, World, funding, held, looked, row


async def test_new_jobs_that_cannot_be_paid_are_held_back_and_replaced(world: World) -> None:
    world.leases = [[held(1, owner=POOR), held(2), held(3, is_new=False)], [held(2, is_new=False)]]
    world.funds = [Funds({POOR: 9, RICH: 100}, {bytes([2]) * 32})]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.jobs] == [2]
    assert world.told("funds") == [([POOR, RICH], [1, 2])]  # only the new jobs are read
    assert world.told("held back") == [([bytes([2]) * 32],)]
    assert world.told("held back beyond") == [(POOR, 9)]


async def test_authorisation_that_is_used_is_held_back_alone(world: World) -> None:
    world.funds = [Funds({RICH: 100}, {bytes([1]) * 32})]
    assert await funding(world).hold_back_unpaid([row(1), row(2)], HERE)
    assert (world.told("held back"), world.told("held back beyond")) == ([([bytes([1]) * 32],)], [])


async def test_missing_balance_is_read_again(world: World) -> None:
    world.funds = [Funds({}, set()), Funds({RICH: 5}, set())]
    paid = funding(world)
    assert not await paid.hold_back_unpaid([row(1)], HERE)
    assert await paid.hold_back_unpaid([row(1)], HERE)
    assert world.told("funds") == [([RICH], [1]), ([RICH], [])]


async def test_answer_for_an_old_block_does_not_count(world: World) -> None:
    world.answers = anyio.Event()
    world.funds = [Funds({RICH: 100}, set()), Funds({POOR: 5}, set()), Funds({RICH: 50}, set())]
    paid = funding(world)
    found: list[Funds] = []

    async def ask() -> None:
        found.append(await paid.read_funds([row(1)], HERE))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(paid.read_funds, [row(2, owner=POOR)], NEXT)
        await anyio.wait_all_tasks_blocked()
        world.answers.set()
    assert found == [Funds({RICH: 100}, set())]
    assert await paid.read_funds([row(1)], NEXT) == Funds({POOR: 5, RICH: 50}, set())


async def test_owner_who_has_just_enough_is_not_poor(world: World) -> None:
    world.leases = [[held(1, owner=POOR)]]
    world.funds = [Funds({POOR: 10}, set())]
    await looked(world)
    assert len(world.told("lease")) == 1
    assert not world.told("held back") + world.told("held back beyond")


async def test_funds_are_cached_until_the_index_moves(world: World) -> None:
    paid = funding(world)
    one, other = row(1), row(2)
    world.funds = [Funds({RICH: 100}, set()), Funds({}, {bytes([2]) * 32}), Funds({RICH: 50}, set())]
    assert await paid.read_funds([one], HERE) == Funds({RICH: 100}, set())
    assert await paid.read_funds([one], HERE) == Funds({RICH: 100}, set())
    assert await paid.read_funds([one, other], HERE) == Funds({RICH: 100}, {bytes([2]) * 32})
    assert await paid.read_funds([one], NEXT) == Funds({RICH: 50}, set())
    assert world.told("funds") == [([RICH], [1]), ([], [2]), ([RICH], [1])]
    poor = row(3, owner=POOR)
    world.funds = [Funds({POOR: 5}, set())]
    await paid.read_funds([one, poor], NEXT)
    assert world.told("funds")[-1] == ([POOR], [3])


@pytest.mark.parametrize("silence", [None, Retryable("chain_unreachable", "away")])
async def test_silent_node_delays_no_poll_and_is_skipped_for_a_while(
    world: World, silence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.api.book.funding._NODE_TIMEOUT_S", 0.01)
    paid = funding(world)
    world.funds = [silence, Funds({RICH: 5}, set())]
    assert not await paid.hold_back_unpaid([row(1)], HERE)
    world.now += 4.9
    assert not await paid.hold_back_unpaid([row(1)], HERE)
    assert len(world.told("funds")) == 1
    world.now += 0.1
    assert await paid.hold_back_unpaid([row(1)], HERE)


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
