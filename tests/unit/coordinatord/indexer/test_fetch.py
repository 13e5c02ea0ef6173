"""A node's blocks, read in several requests."""

import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc import CALLS_PER_REQUEST, Rpc
from coordinatord.indexer.fetch import Source
from tests.fakes.chain import DECODER, FakeChain

pytestmark = pytest.mark.anyio

LAST = CALLS_PER_REQUEST + 5


async def test_a_chain_that_is_reorganised_between_two_requests_for_headers_is_not_believed() -> None:
    chain = FakeChain()
    for _ in range(LAST):
        chain.mine()
    requests = 0

    async def reorganised(request: bytes) -> tuple[int, bytes]:
        nonlocal requests
        requests += 1
        answer = await chain.answer(request)
        if requests == 1:
            chain.fork(CALLS_PER_REQUEST - 5)
            while chain.height < LAST:
                chain.mine()
        return answer

    source = Source(Rpc(reorganised), DECODER)
    with pytest.raises(Retryable, match=f"block {CALLS_PER_REQUEST + 1} is not the child"):
        await source.headers(1, LAST)
    assert requests == 2
    assert [header.height for header in await source.headers(1, LAST)] == list(range(1, LAST + 1))
