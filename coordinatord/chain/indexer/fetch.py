"""Fetch blocks and logs from the node: by range far below the head, by block hash near it.

Every failure is raised as `Retryable`, and the caller may repeat the request.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import anyio
import attrs
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.evidence import (
    BlockRange,
    bloom_mask,
    check_linked,
    decode_logs,
    find_bloom_matches,
    inconsistency_error,
)
from coordinatord.chain.rpc.chain_data import BlockHeader, ChainLog
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, RpcCall, decode_quantity, decode_result, to_retryable
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind

# Number of events that one range should contain.
TARGET_EVENTS_PER_RANGE: Final = 4000
INITIAL_WIDTH_BLOCKS: Final = 16
_SUCCESSES_BEFORE_GROWTH: Final = 64

_HEX_RANGE_PATTERN: Final = re.compile(r"\[?\s*(0x[0-9a-f]+)\s*(?:,|-|to|and|\.\.)\s*(0x[0-9a-f]+)", re.IGNORECASE)
_DECIMAL_RANGE_PATTERN: Final = re.compile(r"\brange:? \[?(\d{1,19})\s*(?:,|-)\s*(\d{1,19})", re.IGNORECASE)
_NUMBER_PATTERN: Final = re.compile(r"\b(\d[\d,_]{0,19})\s*(k\b)?", re.IGNORECASE)
# Concurrent batches for one range, so that the node works while an answer is decoded.
_MAX_CONCURRENT_BATCHES: Final = 4
# Few, because the receipts of a block may be as large as the block.
_RECEIPTS_PER_BATCH: Final = 10
MAX_RANGES_IN_FLIGHT: Final = 2


def suggested_width(message: str, requested: int) -> int | None:
    """Return a width below `requested` that the node's error message suggests, or None.

    The message may name a range that would work. Otherwise the limit is the largest number in the message that is below
    `requested`, because wordings vary too much for patterns. Mistaking a limit on results for a limit on blocks is
    harmless, because the caller must try a smaller width anyway.
    """
    if found := _HEX_RANGE_PATTERN.search(message):
        suggested = int(found[2], 16) - int(found[1], 16) + 1
    elif found := _DECIMAL_RANGE_PATTERN.search(message):
        suggested = int(found[2]) - int(found[1]) + 1
    else:
        suggested = 0
    if 0 < suggested < requested:
        return suggested
    numbers = [
        int(digits.replace(",", "").replace("_", "")) * (1000 if thousands else 1)
        for digits, thousands in _NUMBER_PATTERN.findall(message)
    ]
    return max((number for number in numbers if 0 < number < requested), default=None)


class RangeWidth:
    """Number of blocks per log request, adapted to the node's limit and to the density of events.

    A node that rejects a range usually names its limit. Otherwise the range is halved. The limit is raised
    only after many successes, because limits differ between RPC services and some count results instead of blocks.
    Below the limit, the width aims at a few thousand events per range, which keeps fetching, decoding and writing busy
    at the same time. `max_blocks` is the operator's maximum.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        # Largest width that the node is known to accept.
        self._limit = max_blocks
        self._target_blocks = float(min(INITIAL_WIDTH_BLOCKS, max_blocks))
        self._successes = 0

    @property
    def width_blocks(self) -> int:
        return max(1, min(int(self._target_blocks), self._limit))

    def record_success(self, blocks: int, events: int) -> None:
        """Record that the node answered a range."""
        fitting = blocks * TARGET_EVENTS_PER_RANGE / max(1, events)
        self._target_blocks = max(1.0, min(fitting, 2.0 * max(self._target_blocks, blocks), float(self._max_blocks)))
        if blocks >= self._limit < self._max_blocks:
            self._successes += 1
            if self._successes >= _SUCCESSES_BEFORE_GROWTH:
                self._successes = 0
                self._limit = min(self._max_blocks, self._limit + max(1, self._limit // 4))

    def record_rejection(self, blocks: int, message: str) -> None:
        """Record that the node rejected a range as too wide."""
        self._limit = max(1, min(self._limit, suggested_width(message, blocks) or blocks // 2))
        self._successes = 0

    def record_failure(self, blocks: int) -> None:
        """Record that the node did not answer a range, perhaps because the range was too much work. Narrow the next
        range, but keep the limit."""
        self._target_blocks = max(1.0, min(self._target_blocks, blocks / 2))


class BatchSize:
    """Number of calls per JSON-RPC batch. The size is halved after a batch without an answer, and doubled again
    after many successes."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._successes = 0
        self.calls = max_size

    def record_success(self) -> None:
        self._successes += 1
        if self._successes >= _SUCCESSES_BEFORE_GROWTH:
            self._successes = 0
            self.calls = min(self._max_size, 2 * self.calls)

    def record_failure(self, calls: int) -> None:
        self._successes = 0
        self.calls = max(1, min(self.calls, calls // 2))


T = TypeVar("T")


@attrs.define
class _PendingAnswer(Generic[T]):
    """Answer of a running request. Errors are stored and raised by `result`, outside of the task group."""

    done_event: anyio.Event = attrs.field(factory=anyio.Event)
    # Empty until the answer arrives, then a list with the answer as its only element.
    outcome: list[T] | Retryable = attrs.field(factory=list)

    async def run(self, request: Callable[[], Awaitable[T]]) -> None:
        try:
            self.outcome = [await request()]
        except Retryable as error:
            self.outcome = error
        self.done_event.set()

    @property
    def result(self) -> T:
        if isinstance(self.outcome, Retryable):
            raise self.outcome
        return self.outcome[0]


class _ReceiptLogs(msgspec.Struct):
    logs: list[ChainLog]


class BlockSource(Protocol):
    """Source of checked blocks and logs, from one node or from several that agree."""

    async def head(self) -> BlockHeader: ...
    async def chain_id(self) -> int: ...
    async def headers(self, first: int, last: int) -> list[BlockHeader]: ...
    async def blocks(self, first: int, last: int) -> list[BlockRange]: ...
    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange: ...


class NodeSource:
    """Blocks and logs of one node. Every answer is checked."""

    def __init__(self, rpc: Rpc, decoder: LogDecoder) -> None:
        self._rpc = rpc
        self._decoder = decoder
        self._masks = [bloom_mask(address) for address in decoder.addresses]
        self._addresses = list(decoder.addresses)
        self._header_batch = BatchSize(CALLS_PER_REQUEST)
        self._logs_batch = BatchSize(CALLS_PER_REQUEST)
        self._receipts_batch = BatchSize(_RECEIPTS_PER_BATCH)

    async def head(self) -> BlockHeader:
        return await self._call(BlockHeader, "eth_getBlockByNumber", "latest", False)

    async def chain_id(self) -> int:
        return decode_quantity(await self._call(object, "eth_chainId"))

    async def headers(self, first: int, last: int) -> list[BlockHeader]:
        """Return the linked headers of all blocks from `first` to `last`."""
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in range(first, last + 1)]
        headers = await self._call_many(BlockHeader, calls, self._header_batch)
        check_linked(headers, first)
        return headers

    async def blocks(self, first: int, last: int) -> list[BlockRange]:
        """Return one range per block. Logs are requested by block hash, so a reorg cannot mix two branches."""
        headers = await self.headers(first, last)
        calls = [RpcCall("eth_getLogs", ({"blockHash": h.hash, "address": self._addresses},)) for h in headers]
        logs = await self._call_many(list[ChainLog], calls, self._logs_batch)
        read = [decode_logs([h], found, self._decoder) for h, found in zip(headers, logs, strict=True)]
        await self._check_blooms([header for _, without_logs in read for header in without_logs])
        return [block_range for block_range, _ in read]

    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange:
        """Return the blocks from `first` to `last` as one range. Adapt `width` to the node's answers.

        Headers and logs are requested concurrently. Each log carries its block hash, so a reorg between both answers is
        detected.
        """
        headers, logs = _PendingAnswer[list[BlockHeader]](), _PendingAnswer[list[ChainLog]]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(headers.run, partial(self.headers, first, last))
            tasks.start_soon(logs.run, partial(self._read_logs, first, last, width))
        block_range, without_logs = decode_logs(headers.result, logs.result, self._decoder)
        await self._check_blooms(without_logs)
        return block_range

    async def _read_logs(self, first: int, last: int, width: RangeWidth) -> list[ChainLog]:
        found: list[ChainLog] = []
        while first <= last:
            upto = last
            while True:
                blocks = upto - first + 1
                query = {"fromBlock": hex(first), "toBlock": hex(upto), "address": self._addresses}
                try:
                    logs = await self._rpc.call_as(list[ChainLog], "eth_getLogs", query)
                    break
                except RpcError as error:
                    if error.kind is not RpcErrorKind.RANGE_TOO_WIDE or blocks == 1:
                        width.record_failure(blocks)
                        raise to_retryable(error, "eth_getLogs") from error
                    width.record_rejection(blocks, error.message)
                    upto = first + min(width.width_blocks, blocks - 1) - 1
                except Retryable:
                    width.record_failure(blocks)
                    raise
            width.record_success(blocks, len(logs))
            found += logs
            first = upto + 1
        return found

    async def _check_blooms(self, without_logs: Sequence[BlockHeader]) -> None:
        """Fetch the receipts of blocks that have no logs although their bloom filter matches. Raise Retryable if the
        node withheld logs."""
        suspects = find_bloom_matches(without_logs, self._masks)
        if not suspects:
            return
        calls = [RpcCall("eth_getBlockReceipts", (header.hash,)) for header in suspects]
        for header, receipts in zip(
            suspects, await self._call_many(list[_ReceiptLogs], calls, self._receipts_batch), strict=True
        ):
            if any(log.address.lower() in self._addresses for receipt in receipts for log in receipt.logs):
                raise inconsistency_error(f"the node withheld logs of block {header.height}")

    async def _call(self, result_type: type[T], method: str, *params: object) -> T:
        try:
            return await self._rpc.call_as(result_type, method, *params)
        except RpcError as error:
            raise to_retryable(error, method) from error

    async def _call_many(self, result_type: type[T], calls: Sequence[RpcCall], batch_size: BatchSize) -> list[T]:
        batches = [calls[start : start + batch_size.calls] for start in range(0, len(calls), batch_size.calls)]
        results: list[T] = []
        for group in [
            batches[start : start + _MAX_CONCURRENT_BATCHES]
            for start in range(0, len(batches), _MAX_CONCURRENT_BATCHES)
        ]:
            answers = [_PendingAnswer[list[T]]() for _ in group]
            async with anyio.create_task_group() as tasks:
                for pending, batch in zip(answers, group, strict=True):
                    tasks.start_soon(pending.run, partial(self._call_batch, result_type, batch, batch_size))
            for pending in answers:
                results += pending.result
        return results

    async def _call_batch(self, result_type: type[T], calls: Sequence[RpcCall], batch_size: BatchSize) -> list[T]:
        try:
            answers = await self._rpc.batch(calls)
        except RpcError as error:
            batch_size.record_failure(len(calls))
            raise to_retryable(error, calls[0].method) from error
        except Retryable:
            batch_size.record_failure(len(calls))
            raise
        batch_size.record_success()
        results: list[T] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, RpcError):
                raise to_retryable(answer, call.method) from answer
            results.append(decode_result(answer, result_type, call.method))
        return results


FetchRange = Callable[[int, int], Awaitable[T]]


@asynccontextmanager
async def prefetch_ranges(
    fetch: FetchRange[T], first: int, last: int, width: Callable[[], int]
) -> AsyncIterator[Callable[[], Awaitable[T | None]]]:
    """Fetch ranges of blocks ahead while the caller writes earlier ones.

    Yield a function that returns the next range, or None after `last`. The function raises any error of the fetch.
    `width` returns the number of blocks of the next range.
    """
    # MAX_RANGES_IN_FLIGHT ranges are in flight: the blocked sender holds one, and the buffer holds the others.
    send, receive = anyio.create_memory_object_stream[_PendingAnswer[T]](MAX_RANGES_IN_FLIGHT - 1)

    async def next_range() -> T | None:
        try:
            pending = await receive.receive()
        except anyio.EndOfStream:
            return None
        await pending.done_event.wait()
        return pending.result

    failure: Exception | None = None
    with send, receive:
        async with anyio.create_task_group() as fetching:
            fetching.start_soon(_start_fetches, send, fetch, first, last, width)
            try:
                yield next_range
            except Exception as raised:
                failure = raised
            fetching.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _start_fetches(
    send: MemoryObjectSendStream[_PendingAnswer[T]],
    fetch: FetchRange[T],
    first: int,
    last: int,
    width: Callable[[], int],
) -> None:
    async with send, anyio.create_task_group() as fetches:
        while first <= last:
            upto = min(last, first + width() - 1)
            pending = _PendingAnswer[T]()
            fetches.start_soon(pending.run, partial(fetch, first, upto))
            await send.send(pending)
            first = upto + 1
