"""Blocks and their logs from the node: by range far below the head, by block hash near it.

Whatever goes wrong here is a `Retryable`: nothing was written, and the same question may be asked again.
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
from coordinatord.chain.contracts.logs import Decoder
from coordinatord.chain.indexer.evidence import BlockRange, bloom_mask, check_linked, lied, read_logs, suspects
from coordinatord.chain.rpc.chain_data import BlockHeader, ChainLog
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, RpcCall, decode_result, quantity, retryable_of
from coordinatord.chain.rpc.errors import Meaning, RpcError

EVENTS_PER_RANGE: Final = 4000
FIRST_WIDTH: Final = 16
_PATIENCE: Final = 64  # successes at the limit before a wider range is tried

_HEX_RANGE: Final = re.compile(r"\[?\s*(0x[0-9a-f]+)\s*(?:,|-|to|and|\.\.)\s*(0x[0-9a-f]+)", re.IGNORECASE)
_RETRY_RANGE: Final = re.compile(r"\brange:? \[?(\d{1,19})\s*(?:,|-)\s*(\d{1,19})", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\b(\d[\d,_]{0,19})\s*(k\b)?", re.IGNORECASE)


def hinted_width(message: str, asked: int) -> int | None:
    """A width below the one asked for that a refusal suggests, if it does.

    Either it names a range that would work, or the limit is the largest of its numbers that the request exceeded:
    the wordings are too many for patterns. A limit on results that is taken for one on blocks does no harm, since
    something below the width asked for had to be tried anyway.
    """
    if found := _HEX_RANGE.search(message):
        works = int(found[2], 16) - int(found[1], 16) + 1
    elif found := _RETRY_RANGE.search(message):
        works = int(found[2]) - int(found[1]) + 1
    else:
        works = 0
    if 0 < works < asked:
        return works
    numbers = [
        int(digits.replace(",", "").replace("_", "")) * (1000 if thousands else 1)
        for digits, thousands in _NUMBER.findall(message)
    ]
    return max((number for number in numbers if 0 < number < asked), default=None)


class RangeWidth:
    """Number of blocks to ask logs for at once: what the node allows, and what suits our own pipeline.

    A node that refuses a range mostly says what it would take; where it does not, the range is halved. The limit is
    remembered and tried again only after a long run of successes, because each provider's limits are its own and some
    count results, not blocks. Below the limit, the width follows the density of events: ranges of some thousand events
    keep fetching, decoding and writing busy at once, larger ones make them wait for each other. `cap` is the
    operator's; it is never passed.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._limit = cap  # what the node is known to take
        self._wanted = float(min(FIRST_WIDTH, cap))
        self._successes = 0

    @property
    def blocks(self) -> int:
        return max(1, min(int(self._wanted), self._limit))

    def took(self, blocks: int, events: int) -> None:
        """A range was answered."""
        fitting = blocks * EVENTS_PER_RANGE / max(1, events)
        self._wanted = max(1.0, min(fitting, 2.0 * max(self._wanted, blocks), float(self._cap)))
        if blocks >= self._limit < self._cap:
            self._successes += 1
            if self._successes >= _PATIENCE:
                self._successes = 0
                self._limit = min(self._cap, self._limit + max(1, self._limit // 4))

    def refused(self, blocks: int, message: str) -> None:
        """A range was too wide for the node."""
        self._limit = max(1, min(self._limit, hinted_width(message, blocks) or blocks // 2))
        self._successes = 0

    def struggled(self, blocks: int) -> None:
        """No answer came: perhaps the range was too much work. Go on with less, but remember nothing."""
        self._wanted = max(1.0, min(self._wanted, blocks / 2))


class BatchSize:
    """Number of calls in one JSON-RPC batch. A batch that got no answer may have been too much work, so the next ones
    are half as long. After a long run of successes they are twice as long again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._successes = 0
        self.calls = most

    def took(self) -> None:
        self._successes += 1
        if self._successes >= _PATIENCE:
            self._successes = 0
            self.calls = min(self._most, 2 * self.calls)

    def struggled(self, calls: int) -> None:
        self._successes = 0
        self.calls = max(1, min(self.calls, calls // 2))


T = TypeVar("T")

_AT_ONCE: Final = 4  # requests of one range; a node answers several while one is read
_RECEIPTS_PER_BATCH: Final = 10  # each may be as large as its block


@attrs.define
class _Pending(Generic[T]):
    """An answer on its way. An error is kept as a value, so that it surfaces in its turn and alone, not as a group."""

    done: anyio.Event = attrs.field(factory=anyio.Event)
    outcome: list[T] | Retryable = attrs.field(factory=list)  # the answer alone in a list, once it is there

    async def settle(self, ask: Callable[[], Awaitable[T]]) -> None:
        try:
            self.outcome = [await ask()]
        except Retryable as error:
            self.outcome = error
        self.done.set()

    @property
    def result(self) -> T:
        if isinstance(self.outcome, Retryable):
            raise self.outcome
        return self.outcome[0]


class _ReceiptLogs(msgspec.Struct):
    logs: list[ChainLog]


class BlockSource(Protocol):
    """Checked blocks and logs: of one node, or of several that agree."""

    async def head(self) -> BlockHeader: ...
    async def chain_id(self) -> int: ...
    async def headers(self, first: int, last: int) -> list[BlockHeader]: ...
    async def blocks(self, first: int, last: int) -> list[BlockRange]: ...
    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange: ...


class Source:
    """Blocks and logs of one node, each answer checked."""

    def __init__(self, rpc: Rpc, decoder: Decoder) -> None:
        self._rpc = rpc
        self._decoder = decoder
        self._masks = [bloom_mask(address) for address in decoder.addresses]
        self._addresses = list(decoder.addresses)
        self._header_batch = BatchSize(CALLS_PER_REQUEST)
        self._logs_batch = BatchSize(CALLS_PER_REQUEST)
        self._receipts_batch = BatchSize(_RECEIPTS_PER_BATCH)

    async def head(self) -> BlockHeader:
        return await self._one(BlockHeader, "eth_getBlockByNumber", "latest", False)

    async def chain_id(self) -> int:
        return quantity(await self._one(object, "eth_chainId"))

    async def headers(self, first: int, last: int) -> list[BlockHeader]:
        """Linked headers of all blocks from `first` to `last`."""
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in range(first, last + 1)]
        headers = await self._many(BlockHeader, calls, self._header_batch)
        check_linked(headers, first)
        return headers

    async def blocks(self, first: int, last: int) -> list[BlockRange]:
        """One range for each block; logs are asked for by hash, so that no reorg can come between."""
        headers = await self.headers(first, last)
        calls = [RpcCall("eth_getLogs", ({"blockHash": h.hash, "address": self._addresses},)) for h in headers]
        logs = await self._many(list[ChainLog], calls, self._logs_batch)
        read = [read_logs([h], found, self._decoder) for h, found in zip(headers, logs, strict=True)]
        await self._clear([header for _, silent in read for header in silent])
        return [block_range for block_range, _ in read]

    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange:
        """All of them in one range. What the node says about too wide ranges is told to `width`.

        Headers and logs are asked for at the same time: each log names its block, so that whichever comes first, a
        reorganisation between them shows.
        """
        headers, logs = _Pending[list[BlockHeader]](), _Pending[list[ChainLog]]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(headers.settle, partial(self.headers, first, last))
            tasks.start_soon(logs.settle, partial(self._logs, first, last, width))
        block_range, silent = read_logs(headers.result, logs.result, self._decoder)
        await self._clear(silent)
        return block_range

    async def _logs(self, first: int, last: int, width: RangeWidth) -> list[ChainLog]:
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
                    if error.meaning is not Meaning.RANGE_TOO_WIDE or blocks == 1:
                        width.struggled(blocks)
                        raise retryable_of(error, "eth_getLogs") from error
                    width.refused(blocks, error.message)
                    upto = first + min(width.blocks, blocks - 1) - 1
                except Retryable:
                    width.struggled(blocks)
                    raise
            width.took(blocks, len(logs))
            found += logs
            first = upto + 1
        return found

    async def _clear(self, silent: Sequence[BlockHeader]) -> None:
        """Blocks without logs whose filters say otherwise: their receipts tell a collision from withheld logs."""
        doubtful = suspects(silent, self._masks)
        if not doubtful:
            return
        calls = [RpcCall("eth_getBlockReceipts", (header.hash,)) for header in doubtful]
        for header, receipts in zip(
            doubtful, await self._many(list[_ReceiptLogs], calls, self._receipts_batch), strict=True
        ):
            if any(log.address.lower() in self._addresses for receipt in receipts for log in receipt.logs):
                raise lied(f"it withheld logs of block {header.height}")

    async def _one(self, kind: type[T], method: str, *params: object) -> T:
        try:
            return await self._rpc.call_as(kind, method, *params)
        except RpcError as error:
            raise retryable_of(error, method) from error

    async def _many(self, kind: type[T], calls: Sequence[RpcCall], size: BatchSize) -> list[T]:
        batches = [calls[start : start + size.calls] for start in range(0, len(calls), size.calls)]
        results: list[T] = []
        for several in [batches[start : start + _AT_ONCE] for start in range(0, len(batches), _AT_ONCE)]:
            answers = [_Pending[list[T]]() for _ in several]
            async with anyio.create_task_group() as tasks:
                for pending, batch in zip(answers, several, strict=True):
                    tasks.start_soon(pending.settle, partial(self._batch, kind, batch, size))
            for pending in answers:
                results += pending.result
        return results

    async def _batch(self, kind: type[T], calls: Sequence[RpcCall], size: BatchSize) -> list[T]:
        try:
            answers = await self._rpc.batch(calls)
        except RpcError as error:
            size.struggled(len(calls))
            raise retryable_of(error, calls[0].method) from error
        except Retryable:
            size.struggled(len(calls))
            raise
        size.took()
        results: list[T] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, RpcError):
                raise retryable_of(answer, call.method) from answer
            results.append(decode_result(answer, kind, call.method))
        return results


AHEAD: Final = 2

Fetch = Callable[[int, int], Awaitable[T]]


@asynccontextmanager
async def prefetched(
    fetch: Fetch[T], first: int, last: int, width: Callable[[], int]
) -> AsyncIterator[Callable[[], Awaitable[T | None]]]:
    """Ranges of blocks fetched ahead and handed over in order: while one is written, the next are on their way.

    Yields a function that gives the next range, and None behind `last`; it raises what fetching raised.

    `width` is asked before each range, how many blocks it may have.
    """
    # The one being written and AHEAD more: the stream holds all of them but the one that its sender waits with.
    send, receive = anyio.create_memory_object_stream[_Pending[T]](AHEAD - 1)

    async def following() -> T | None:
        try:
            pending = await receive.receive()
        except anyio.EndOfStream:
            return None
        await pending.done.wait()
        return pending.result

    wrong: Exception | None = None
    with send, receive:
        async with anyio.create_task_group() as fetching:
            fetching.start_soon(_plan, send, fetch, first, last, width)
            try:
                yield following
            except Exception as raised:
                wrong = raised
            fetching.cancel_scope.cancel()
    if wrong is not None:
        raise wrong


async def _plan(
    send: MemoryObjectSendStream[_Pending[T]], fetch: Fetch[T], first: int, last: int, width: Callable[[], int]
) -> None:
    async with send, anyio.create_task_group() as fetches:
        while first <= last:
            upto = min(last, first + width() - 1)
            pending = _Pending[T]()
            fetches.start_soon(pending.settle, partial(fetch, first, upto))
            await send.send(pending)
            first = upto + 1
