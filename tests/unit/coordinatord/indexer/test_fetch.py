"""Reading a node's blocks in several requests, with ranges that the node accepts, and checks of its answers."""

from typing import Any

import anyio
import msgspec
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer.evidence import bloom_mask, check_linked, decode_logs, find_bloom_matches
from coordinatord.chain.indexer.fetch import (
    INITIAL_WIDTH_BLOCKS,
    TARGET_EVENTS_PER_RANGE,
    BatchSize,
    NodeSource,
    RangeWidth,
    suggested_width,
)
from coordinatord.chain.rpc.chain_data import BlockHeader, ChainLog
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc
from coordinatord.chain.rpc.errors import RpcErrorKind, classify_error
from tests.support.fakes.chain import DECODER, FakeChain

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


# Errors of RPC providers for a request of 5001 blocks, and the range that each error allows.
REFUSALS = [
    ("query returned more than 10000 results. Try with this block range [0x1000000, 0x10001F3].", 500),
    ("Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the"
     " response size. Based on your parameters, this block range should work: [0x0, 0x63]", 100),
    ("query exceeds max results 20000, retry with the range 17000000-17000099", 100),
    ("eth_getLogs is limited to a 1,000 range", 1000),
    ("eth_getLogs and eth_newFilter are limited to a 1,000 blocks range", 1000),
    ("requested too many blocks from 16772215 to 16777216, maximum is set to 2048", 2048),
    ("exceed maximum block range: 5000", 5000),
    ("block range is too wide", None),
    ("Block range limit exceeded. See more details at https://docs.example.com", None),
    ("eth_getLogs is limited to 0 - 1000 blocks range", 1000),
    ("Max range: 800", 800),
    ("block range exceeds 1k", 1000),
    ("invalid block range params: range 5001 exceeds the limit of 3000", 3000),
    ("query returned more than 10000 results", None),
    ("logs matched by query exceeds limit of 10000", None),
    ("backend response too large", None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "width"), REFUSALS)
def test_a_refusal_is_recognised_and_its_hint_read(message: str, width: int | None) -> None:
    assert classify_error({"code": -32000, "message": message}).kind is RpcErrorKind.RANGE_TOO_WIDE
    assert suggested_width(message, 5001) == width


def grown(cap: int) -> RangeWidth:
    width = RangeWidth(cap)
    for _ in range(20):
        width.record_success(width.width_blocks, 0)
    return width


def test_width_grows_to_the_cap_where_events_are_rare() -> None:
    width = RangeWidth(5000)
    assert width.width_blocks == INITIAL_WIDTH_BLOCKS
    assert grown(5000).width_blocks == 5000


def test_width_follows_the_density_of_events() -> None:
    width = grown(5000)
    width.record_success(5000, 5000 * 100)
    assert width.width_blocks == TARGET_EVENTS_PER_RANGE // 100
    width.record_success(width.width_blocks, 0)
    assert width.width_blocks == 2 * (TARGET_EVENTS_PER_RANGE // 100)


def test_refused_range_is_narrowed_and_the_limit_kept() -> None:
    width = grown(5000)
    width.record_rejection(5000, "limited to a 2,000 blocks range")
    assert width.width_blocks == 2000
    width.record_rejection(2000, "block range is too wide")
    assert width.width_blocks == 1000
    for _ in range(10):
        width.record_success(1000, 0)
    assert width.width_blocks == 1000


def test_after_a_long_run_at_the_limit_a_wider_range_is_tried() -> None:
    width = grown(5000)
    width.record_rejection(5000, "limited to a 1,000 blocks range")
    for _ in range(64):
        width.record_success(1000, 0)
    assert width.width_blocks == 1250


def test_timed_out_range_narrows_only_the_next() -> None:
    width = grown(5000)
    width.record_failure(5000)
    assert width.width_blocks == 2500
    width.record_success(2500, 0)
    assert width.width_blocks == 5000


def test_width_never_falls_below_one_block() -> None:
    width = RangeWidth(1)
    width.record_rejection(1, "block range is too wide")
    width.record_failure(1)
    width.record_success(1, 10**6)
    assert width.width_blocks == 1


MASKS = [bloom_mask(address) for address in DECODER.addresses]


def told(*blocks: tuple[contract_events.Event, ...]) -> tuple[list[BlockHeader], list[ChainLog]]:
    """Return the headers and logs that an honest node returns for blocks 1 and up."""
    chain = FakeChain()
    for events in blocks:
        chain.mine(*events)
    headers = msgspec.convert([block.header for block in chain.blocks[1:]], list[BlockHeader])
    return headers, msgspec.convert([log for block in chain.blocks for log in block.logs], list[ChainLog])


SLA, FEES = contract_events.SlaSet(60, True), contract_events.FeesSet(250, 1)


def test_events_are_placed_by_block_and_log() -> None:
    headers, logs = told((SLA, FEES), (), (contract_events.TreasurySet(b"\1" * 20),))
    stretch, silent = decode_logs(headers, logs, DECODER)
    assert stretch.events == [(1, 0, SLA), (1, 1, FEES), (3, 0, contract_events.TreasurySet(b"\1" * 20))]
    assert silent == [headers[1]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"block_hash": "0x" + "ab" * 32}, "another block"),
        ({"removed": True}, "another block"),
        ({"block_number": "0x9"}, "out of order"),
        ({"block_number": "0x0"}, "out of order"),
        ({"log_index": "0x0"}, "out of order"),
        ({"log_index": "zz"}, "invalid literal"),
        ({"data": "0x"}, "malformed"),
        ({"address": "0x" + "99" * 20}, "was not requested"),
    ],
)
def test_a_log_that_does_not_fit_its_block_is_not_believed(change: dict[str, Any], why: str) -> None:
    headers, logs = told((SLA, FEES))
    logs[1] = msgspec.structs.replace(logs[1], **change)
    with pytest.raises(Retryable, match=why):
        decode_logs(headers, logs, DECODER)


def test_logs_out_of_the_order_of_the_chain_are_not_believed() -> None:
    headers, logs = told((SLA,), (FEES,))
    with pytest.raises(Retryable, match="out of order"):
        decode_logs(headers, logs[::-1], DECODER)


def test_headers_must_be_requested_and_linked() -> None:
    headers, _ = told((), (), ())
    check_linked(headers, 1)
    with pytest.raises(Retryable, match="returned block 1 instead of block 2"):
        check_linked(headers, 2)
    stranger = msgspec.structs.replace(headers[1], hash="0x" + "ab" * 32)
    with pytest.raises(Retryable, match="block 3 is not the child"):
        check_linked([headers[0], stranger, headers[2]], 1)


def test_empty_block_with_a_matching_filter_is_suspect() -> None:
    headers, _ = told((SLA,), ())
    assert find_bloom_matches(headers, MASKS) == [headers[0]]
