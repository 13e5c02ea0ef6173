"""Check a node's answers against each other before any event is used. This module does no I/O.

Headers must be linked by their parent hashes. A log must carry the hash of its block. A block is suspect when its bloom
filter contains a registry's address but the node returned no log of that block.
"""

from collections.abc import Sequence

import attrs

from common.keccak import keccak256
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.contract_events import Event
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.rpc.chain_data import BlockHeader, ChainLog

# Block number, log index and event.
PlacedEvent = tuple[int, int, Event]


@attrs.frozen(slots=True)
class BlockRange:
    """Consecutive blocks and their events, in chain order."""

    headers: Sequence[BlockHeader]
    events: Sequence[PlacedEvent]

    @property
    def first(self) -> BlockHeader:
        return self.headers[0]

    @property
    def last(self) -> BlockHeader:
        return self.headers[-1]


def inconsistency_error(problem: str) -> Retryable:
    """Return the error for answers that contradict each other. The node may just have moved to a new block, so a retry
    can succeed."""
    return Retryable("chain_unreachable", f"the node's answers contradict each other: {problem}")


def check_linked(headers: Sequence[BlockHeader], first: int) -> None:
    """Raise Retryable unless the headers are numbered from `first` on and each is the parent of the next."""
    parent = headers[0].parent_hash
    for number, header in enumerate(headers, first):
        if header.height != number:
            raise inconsistency_error(f"the node returned block {header.height} instead of block {number}")
        if header.parent_hash != parent:
            raise inconsistency_error(f"block {number} is not the child of the block before it")
        parent = header.hash


def decode_logs(
    headers: Sequence[BlockHeader], logs: Sequence[ChainLog], decoder: LogDecoder
) -> tuple[BlockRange, list[BlockHeader]]:
    """Return the decoded range, and the headers of blocks without logs, to pass to `find_bloom_matches`."""
    first = headers[0].height
    positions: list[tuple[int, int]] = []
    without_logs = [True] * len(headers)
    number_text, number, block_hash, last_index = "", -1, "", -1
    try:
        for log in logs:
            # Logs of one block are adjacent.
            if log.block_number != number_text:
                number_text, before = log.block_number, number
                number, last_index = int(number_text, 16), -1
                if number <= before or not 0 <= number - first < len(headers):
                    raise inconsistency_error(f"a log of block {number} is out of order or out of range")
                block_hash = headers[number - first].hash
                without_logs[number - first] = False
            index = int(log.log_index, 16)
            if log.block_hash != block_hash or log.removed:
                raise inconsistency_error(f"log {index} of block {number} belongs to another block with that number")
            if index <= last_index:
                raise inconsistency_error(f"log {index} of block {number} is out of order")
            last_index = index
            positions.append((number, index))
        events = [
            (number, index, event)
            for (number, index), event in zip(positions, decoder.decode_all(logs), strict=True)
            if event is not None
        ]
    except (Refused, ValueError) as malformed:
        raise inconsistency_error(str(malformed)) from malformed
    return BlockRange(headers, events), [header for header, empty in zip(headers, without_logs, strict=True) if empty]


def bloom_mask(address: str) -> int:
    """Return the three bits that a log of this address sets in the bloom filter of its block."""
    digest = keccak256(bytes.fromhex(address[2:]))
    mask = 0
    for byte_index in (0, 2, 4):
        mask |= 1 << (int.from_bytes(digest[byte_index : byte_index + 2]) & 2047)
    return mask


def find_bloom_matches(without_logs: Sequence[BlockHeader], masks: Sequence[int]) -> list[BlockHeader]:
    """Return the headers with a bloom filter that matches one of the addresses. On a busy chain, some of the matches
    are false positives."""
    matches = []
    for header in without_logs:
        bloom = int(header.logs_bloom, 16)
        if bloom and any(bloom & mask == mask for mask in masks):
            matches.append(header)
    return matches
