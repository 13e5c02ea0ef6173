"""Blocks and their logs from the node: by range far below the head, by block hash near it.

Whatever goes wrong here is a `Retryable`: nothing was written, and the same question may be asked again.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from coordinatord.chain.blocks import Header, Log
from coordinatord.chain.decoding import Decoder
from coordinatord.chain.rpc import CALLS_PER_REQUEST, Call, Rpc, decode_result, quantity, trouble_of
from coordinatord.chain.rpc_errors import Meaning, RpcError
from coordinatord.indexer.evidence import Stretch, bloom_mask, check_linked, lied, read_logs, suspects
from coordinatord.indexer.ranges import RangeWidth
from coordinatord.trouble import Retryable

T = TypeVar("T")

_RECEIPTS_PER_BATCH: Final = 10  # each may be as large as its block


class _Receipt(msgspec.Struct):
    logs: list[Log]


class Source:
    """One node, disbelieved."""

    def __init__(self, rpc: Rpc, decoder: Decoder) -> None:
        self._rpc = rpc
        self._decoder = decoder
        self._masks = [bloom_mask(address) for address in decoder.addresses]
        self._addresses = list(decoder.addresses)

    async def head(self) -> Header:
        return await self._one(Header, "eth_getBlockByNumber", "latest", False)

    async def chain_id(self) -> int:
        return quantity(await self._one(object, "eth_chainId"))

    async def headers(self, first: int, last: int) -> list[Header]:
        """Linked headers of all blocks from `first` to `last`."""
        calls = [Call("eth_getBlockByNumber", (hex(number), False)) for number in range(first, last + 1)]
        headers = await self._many(Header, calls, CALLS_PER_REQUEST)
        check_linked(headers, first)
        return headers

    async def blocks(self, first: int, last: int) -> list[Stretch]:
        """One stretch for each block; logs are asked for by hash, so that no reorg can come between."""
        headers = await self.headers(first, last)
        calls = [Call("eth_getLogs", ({"blockHash": h.hash, "address": self._addresses},)) for h in headers]
        logs = await self._many(list[Log], calls, CALLS_PER_REQUEST)
        read = [read_logs([h], found, self._decoder) for h, found in zip(headers, logs, strict=True)]
        await self._clear([header for _, silent in read for header in silent])
        return [stretch for stretch, _ in read]

    async def range(self, first: int, last: int, width: RangeWidth) -> Stretch:
        """All of them in one stretch. What the node says about too wide ranges is told to `width`."""
        headers = await self.headers(first, last)
        stretch, silent = read_logs(headers, await self._logs(first, last, width), self._decoder)
        await self._clear(silent)
        return stretch

    async def _logs(self, first: int, last: int, width: RangeWidth) -> list[Log]:
        found: list[Log] = []
        while first <= last:
            upto = last
            while True:
                blocks = upto - first + 1
                query = {"fromBlock": hex(first), "toBlock": hex(upto), "address": self._addresses}
                try:
                    logs = await self._rpc.call_as(list[Log], "eth_getLogs", query)
                    break
                except RpcError as error:
                    if error.meaning is not Meaning.RANGE_TOO_WIDE or blocks == 1:
                        width.struggled(blocks)
                        raise trouble_of(error, "eth_getLogs") from error
                    width.refused(blocks, error.message)
                    upto = first + min(width.blocks, blocks - 1) - 1
                except Retryable:
                    width.struggled(blocks)
                    raise
            width.took(blocks, len(logs))
            found += logs
            first = upto + 1
        return found

    async def _clear(self, silent: Sequence[Header]) -> None:
        """Blocks without logs whose filters say otherwise: their receipts tell a collision from withheld logs."""
        doubtful = suspects(silent, self._masks)
        if not doubtful:
            return
        calls = [Call("eth_getBlockReceipts", (header.hash,)) for header in doubtful]
        for header, receipts in zip(
            doubtful, await self._many(list[_Receipt], calls, _RECEIPTS_PER_BATCH), strict=True
        ):
            if any(log.address.lower() in self._addresses for receipt in receipts for log in receipt.logs):
                raise lied(f"it withheld logs of block {header.height}")

    async def _one(self, kind: type[T], method: str, *params: object) -> T:
        try:
            return await self._rpc.call_as(kind, method, *params)
        except RpcError as error:
            raise trouble_of(error, method) from error

    async def _many(self, kind: type[T], calls: Sequence[Call], per_batch: int) -> list[T]:
        results: list[T] = []
        for start in range(0, len(calls), per_batch):
            batch = calls[start : start + per_batch]
            try:
                answers = await self._rpc.batch(batch)
            except RpcError as error:
                raise trouble_of(error, batch[0].method) from error
            for call, answer in zip(batch, answers, strict=True):
                if isinstance(answer, RpcError):
                    raise trouble_of(answer, call.method) from answer
                results.append(decode_result(answer, kind, call.method))
        return results
