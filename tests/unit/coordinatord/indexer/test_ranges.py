import pytest

from coordinatord.chain.indexer.fetch import INITIAL_WIDTH_BLOCKS, TARGET_EVENTS_PER_RANGE, RangeWidth, suggested_width
from coordinatord.chain.rpc.errors import RpcErrorKind, classify_error

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
