"""Checks of a node's answers before the indexer accepts an event."""

from typing import Any

import msgspec
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer.evidence import bloom_mask, check_linked, decode_logs, find_bloom_matches
from coordinatord.chain.rpc.chain_data import BlockHeader, ChainLog
from tests.support.fakes.chain import DECODER, FakeChain

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
