"""Checks of the nodes in RPC_URL and RPC_URLS: chain, head, history, state, log ranges, and a call with as much gas as
the largest transaction.

The coordinator may use any of the nodes, so each must pass all checks.
"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import attrs
import msgspec

from common import abi
from common.address_book import AddressBook
from common.checks import CheckRow, Result, fact, right, wrong
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.blocks import latest_block
from coordinatord.chain.relayer.tx_size import TX_GAS_CAP
from coordinatord.chain.rpc.chain_data import Quantity
from coordinatord.chain.rpc.client import Rpc, open_rpc, quantity
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.chain.rpc.nodes import node_names
from coordinatord.run.checks.parts import CheckPart, run_each
from coordinatord.run.config import Config

NODE_REMEDY: Final = "point RPC_URL to a node that answers"
REQUEST_TIMEOUT_S: Final = 8.0
_OTHER_REMEDY: Final = "replace this address in RPC_URLS, or remove it"
_CHECKS_TIMEOUT_S: Final = 30.0
# Half a block must fit the most expensive op and a transaction's fixed costs.
_MIN_BLOCK_GAS: Final = 8_000_000
# Signatures are valid for this time.
_STALE_HEAD_S: Final = 600.0
# A block may be ahead of a correct clock.
_MAX_AHEAD_S: Final = 15.0
# Every node keeps the state of this many blocks.
_STATE_DEPTH_BLOCKS: Final = 128


class _Block(msgspec.Struct):
    number: Quantity
    timestamp: Quantity


@attrs.define(slots=True)
class NodeLook:
    """Checks of one node. `head` is set once the node has shown that it serves this chain."""

    config: Config
    url: str = attrs.field(repr=False)
    name: str
    head: int | None = None

    @property
    def book(self) -> AddressBook:
        return self.config.addresses

    async def rows(self) -> AsyncIterator[CheckRow]:
        async with open_rpc(self.url, timeout_s=REQUEST_TIMEOUT_S) as rpc:
            seen = quantity(await rpc.call("eth_chainId"))
            if seen != self.book.chain_id:
                detail = f"{self.name} serves chain {seen}, and the address book is for chain {self.book.chain_id}"
                yield wrong("node", detail, "point RPC_URL to a node of that chain, or use the right address book")
                return
            head = await rpc.call_as(_Block, "eth_getBlockByNumber", "latest", False)
            number = self.head = int(head.number, 16)
            yield right("node", f"{self.name}: chain {seen}, block {number}")
            yield _clock(int(head.timestamp, 16))
            looks = {
                "history": self._history,
                "state": self._state,
                "log range": self._log_range,
                "gas": self._gas,
            }
            for name, look in looks.items():
                try:
                    async for row in look(rpc, number):
                        yield row
                except (Retryable, RpcError) as error:
                    yield wrong(name, str(error), "use a node that serves this request")

    async def _history(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        first = self.book.deploy_block
        if first > head:
            return  # a wrong address book or a lagging node; another row reports either
        block = await rpc.call("eth_getBlockByNumber", hex(first), False)
        logs = {**registries(self.book), "fromBlock": hex(first), "toBlock": hex(first)}
        try:
            await rpc.call("eth_getLogs", logs)
        except RpcError as error:
            block = None if error.meaning is not Meaning.RATE_LIMITED else block
        if block is None:
            detail = f"the node has no blocks and logs from {first} on"
            yield wrong("history", detail, "use a node that keeps them: the index is built and rebuilt from them")
        else:
            yield right("history", f"blocks and logs from deployBlock on ({head - first} blocks)")

    async def _state(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        """Check old state. Claims are read CONFIRMATIONS below the head, and reverts at the block that mined them."""
        needed = self.config.confirmations
        for depth in sorted(
            {needed, min(_STATE_DEPTH_BLOCKS, head), min(10 * _STATE_DEPTH_BLOCKS, head)}, reverse=True
        ):
            try:
                await rpc.call("eth_getBalance", hex_of(self.book.job_registry), hex(max(head - depth, 0)))
            except RpcError as error:
                if depth <= needed:
                    detail = f"the node has no state of {depth} blocks ago ({error})"
                    yield wrong("state", detail, "lower CONFIRMATIONS, or take a node that keeps it")
                continue
            yield right("state", f"the node has that of {depth} blocks ago")
            return

    async def _log_range(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        width = cap = self.config.getlogs_cap
        while True:
            asked = {**registries(self.book), "fromBlock": hex(max(head - width + 1, 0)), "toBlock": hex(head)}
            try:
                await rpc.call("eth_getLogs", asked)
                break
            except RpcError as error:
                if width == 1 or error.meaning is Meaning.RATE_LIMITED:
                    yield wrong("log range", f"the node rejects eth_getLogs ({error})", "take another node")
                    return
            width = max(width // 2, 1)
        if width == cap:
            yield right("log range", f"the node takes {cap} blocks at a time")
        else:
            detail = f"the node takes {width} blocks at a time"
            yield fact("log range", detail, f"set GETLOGS_CAP={width} to spare the index the first attempts")

    async def _gas(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        limit = (await latest_block(rpc)).gas_limit
        if limit < _MIN_BLOCK_GAS:
            detail = f"a block holds {limit:,} gas, and transactions may take half of it"
            yield wrong("gas", detail, f"the chain must allow {_MIN_BLOCK_GAS:,} for the largest ops to be relayed")
            return
        max_gas = min(TX_GAS_CAP, limit // 2)
        trial = {"from": hex_of(self.book.job_registry), "to": hex_of(self.book.job_registry), "gas": hex(max_gas)}
        try:
            await rpc.call("eth_call", {**trial, "data": hex_of(abi.selector("DOMAIN_SEPARATOR()"))}, "latest")
        except RpcError as error:
            remedy = "raise the gas that the node allows for a call (--rpc.gascap)"
            yield wrong("gas", f"the node tries no transaction of {max_gas:,} gas ({error})", remedy)
            return
        why = "EIP-7825, half a block"
        yield right("gas", f"a block holds {limit:,}; a transaction takes {max_gas:,} at most ({why})")


async def look_at_nodes(config: Config) -> tuple[list[NodeLook], list[CheckRow]]:
    """Check all nodes concurrently. Return their rows: one per check of the first node, and one per further node."""
    names = node_names(config.node_urls)
    looks = [NodeLook(config, url, name) for url, name in zip(config.node_urls, names, strict=True)]
    found = await run_each([CheckPart("node", look.rows, NODE_REMEDY, _CHECKS_TIMEOUT_S) for look in looks])
    for look, rows in zip(looks, found, strict=True):
        apart = _out_of_step(look, looks, config.limits.rpc_lag_blocks)
        if apart is not None:
            rows[0] = wrong("node", apart, "see which of the nodes is behind, or on another chain")
    others = [_one_row(place, look, rows) for place, (look, rows) in enumerate(zip(looks, found, strict=True), 1)]
    return looks, found[0] + others[1:]


def _out_of_step(look: NodeLook, looks: Sequence[NodeLook], lag: int) -> str | None:
    """Compare the node's head with the median head, like the running coordinator. Of two heads, use the higher one."""
    heads = sorted((other.head, other.name) for other in looks if other.head is not None)
    if look.head is None or abs(look.head - heads[len(heads) // 2][0]) <= lag:
        return None
    reference, name = heads[len(heads) // 2]
    return f"{look.name} is at block {look.head}, {name} at {reference}: more than {lag} blocks apart"


def _one_row(place: int, look: NodeLook, rows: Sequence[CheckRow]) -> CheckRow:
    """Return one row for a node of RPC_URLS: its faults or, without faults, all results."""
    faults = [row for row in rows if row.result is Result.WRONG]
    if not faults:
        return right(f"node {place}", "; ".join(row.detail for row in rows))
    details = [row.detail if row.what == "node" else f"{row.what}: {row.detail}" for row in faults]
    detail = "; ".join(details)
    return wrong(f"node {place}", detail if look.name in detail else f"{look.name}: {detail}", _OTHER_REMEDY)


def registries(book: AddressBook) -> dict[str, object]:
    """Return the log filter for the registries' addresses."""
    return {"address": [hex_of(a) for a in (book.provider_registry, book.job_registry, book.ask_registry)]}


def _clock(block_time: int) -> CheckRow:
    age = time.time() - block_time
    if age < -_MAX_AHEAD_S:
        detail = f"this clock is {-age:.0f} s behind the newest block"
        return wrong("clock and chain", detail, "set it (timedatectl): signatures would be rejected as StaleOp")
    if age > _STALE_HEAD_S:
        detail = f"the newest block is {age:.0f} s old"
        return wrong("clock and chain", detail, "is this clock right, does the chain make blocks, is the node behind?")
    return right("clock and chain", f"the newest block is {max(age, 0):.0f} s old")
