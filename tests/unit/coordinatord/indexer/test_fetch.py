"""Reading a node's blocks in several requests."""

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.indexer.fetch import BatchSize, NodeSource, RangeWidth
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc
from tests.support.fakes.chain import DECODER, FakeChain

pytestmark = pytest.mark.anyio

LAST = CALLS_PER_REQUEST + 5


async def test_reorg_between_header_requests_is_rejected() -> None:
    chain = FakeChain()
    for _ in range(LAST):
        chain.mine()
    requests = 0

    async def reorganised(request: bytes) -> tuple[int, bytes]:
        nonlocal requests
        requests += 1
        answer = await chain.post(request)
        if requests == 1:
            chain.fork(CALLS_PER_REQUEST - 5)
            while chain.height < LAST:
                chain.mine()
        return answer

    source = NodeSource(Rpc(reorganised), DECODER)
    with pytest.raises(Retryable, match=f"block {CALLS_PER_REQUEST + 1} is not the child"):
        await source.headers(1, LAST)
    assert requests == 2
    assert [header.height for header in await source.headers(1, LAST)] == list(range(1, LAST + 1))


async def test_requests_of_one_range_are_on_their_way_together() -> None:
    """One request for logs and four for headers. None is answered before all five have arrived."""
    chain, asked, all_there = FakeChain(), list[bytes](), anyio.Event()
    for _ in range(4 * CALLS_PER_REQUEST):
        chain.mine()

    async def patient(request: bytes) -> tuple[int, bytes]:
        asked.append(request)
        if len(asked) == 5:
            all_there.set()
        await all_there.wait()
        return await chain.post(request)

    with anyio.fail_after(10):
        found = await NodeSource(Rpc(patient), DECODER).range(1, chain.height, RangeWidth(chain.height))
    assert [header.height for header in found.headers] == list(range(1, chain.height + 1))
    assert len(asked) == 5


@pytest.mark.parametrize("refused", [b"eth_getLogs", b"eth_getBlockByNumber"])
async def test_range_fails_with_the_error_of_any_request(refused: bytes) -> None:
    chain = FakeChain()
    for _ in range(3 * CALLS_PER_REQUEST):
        chain.mine()

    async def failing(request: bytes) -> tuple[int, bytes]:
        return (429, b"") if refused in request else await chain.post(request)

    with pytest.raises(Retryable, match="rate-limits requests"):
        await NodeSource(Rpc(failing), DECODER).range(1, chain.height, RangeWidth(chain.height))


@pytest.mark.parametrize("slow", [b"eth_getLogs", b"eth_getBlockByNumber"])
async def test_batches_that_take_too_long_get_shorter(slow: bytes) -> None:
    """Within the request timeout, the node answers at most seven such calls."""
    chain = FakeChain()
    for _ in range(CALLS_PER_REQUEST):
        chain.mine()

    async def answer(request: bytes) -> tuple[int, bytes]:
        if request.count(slow) > 7:
            raise NoResponse("SocketTimeoutError")
        return await chain.post(request)

    source, failures = NodeSource(Rpc(answer), DECODER), 0
    while failures < 10:
        try:
            blocks = await source.blocks(1, chain.height)
            break
        except Retryable:
            failures += 1
    assert failures == 4  # 100, 50, 25, 12 calls
    assert [block.last.height for block in blocks] == list(range(1, chain.height + 1))


def test_shortened_batches_grow_again_after_successes() -> None:
    size = BatchSize(100)
    size.record_failure(100)
    size.record_failure(100)  # sent at the same time as the one before
    assert size.calls == 50
    for _ in range(63):
        size.record_success()
    assert size.calls == 50
    size.record_success()
    assert size.calls == 100
