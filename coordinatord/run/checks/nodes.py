"""Check the nodes in RPC_URL and RPC_URLS: chain, head, history, state, log ranges, and a call with as much gas as the
largest transaction.

The coordinator may use any of the nodes, so each must pass all checks.
"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import attrs
import msgspec

from common import abi
from common.address_book import AddressBook
from common.checks import CheckResult, CheckRow, fact, right, wrong
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.blocks import read_latest_block
from coordinatord.chain.relayer.tx_size import TX_GAS_CAP
from coordinatord.chain.rpc.chain_data import Quantity
from coordinatord.chain.rpc.client import Rpc, decode_quantity, open_rpc
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.chain.rpc.nodes import node_names
from coordinatord.run.checks.parts import CheckPart, run_each_part
from coordinatord.run.config import Config

NODE_REMEDY: Final = "point RPC_URL to a node that answers"
REQUEST_TIMEOUT_S: Final = 8.0
_OTHER_NODE_REMEDY: Final = "replace this address in RPC_URLS, or remove it"
_CHECKS_TIMEOUT_S: Final = 30.0
# Minimum gas limit of a block. Half of this limit, the most that a transaction uses, must suffice for the largest op.
_MIN_BLOCK_GAS: Final = 8_000_000
# Maximum age of the newest block: the time for which a signed op is valid.
_STALE_HEAD_S: Final = 600.0
# Maximum time by which a block's timestamp may be ahead of a correct clock.
_MAX_BLOCK_AHEAD_S: Final = 15.0
# Number of recent blocks whose state every node keeps.
_STATE_DEPTH_BLOCKS: Final = 128


class _Block(msgspec.Struct):
    number: Quantity
    timestamp: Quantity


@attrs.define(slots=True)
class NodeChecks:
    """Checks of one node. `head` is the node's newest block, or None until the node has reported the right chain id."""

    config: Config
    url: str = attrs.field(repr=False)
    name: str
    head: int | None = None

    @property
    def address_book(self) -> AddressBook:
        return self.config.addresses

    async def rows(self) -> AsyncIterator[CheckRow]:
        async with open_rpc(self.url, timeout_s=REQUEST_TIMEOUT_S) as rpc:
            chain_id = decode_quantity(await rpc.call("eth_chainId"))
            if chain_id != self.address_book.chain_id:
                book_chain_id = self.address_book.chain_id
                detail = f"{self.name} serves chain {chain_id}, and the address book is for chain {book_chain_id}"
                yield wrong("node", detail, "point RPC_URL to a node of that chain, or use the right address book")
                return
            head = await rpc.call_as(_Block, "eth_getBlockByNumber", "latest", False)
            number = self.head = int(head.number, 16)
            yield right("node", f"{self.name}: chain {chain_id}, block {number}")
            yield _clock_row(int(head.timestamp, 16))
            checks = {
                "history": self._check_history,
                "state": self._check_state,
                "log range": self._check_log_range,
                "gas": self._check_gas,
            }
            for name, check in checks.items():
                try:
                    async for row in check(rpc, number):
                        yield row
                except (Retryable, RpcError) as error:
                    yield wrong(name, str(error), "use a node that serves this request")

    async def _check_history(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        first = self.address_book.deploy_block
        if first > head:
            return  # the address book is wrong or the node lags, and another row reports that
        block = await rpc.call("eth_getBlockByNumber", hex(first), False)
        logs = {**registries_filter(self.address_book), "fromBlock": hex(first), "toBlock": hex(first)}
        try:
            await rpc.call("eth_getLogs", logs)
        except RpcError as error:
            block = None if error.kind is not RpcErrorKind.RATE_LIMITED else block
        if block is None:
            detail = f"the node has no blocks and logs from {first} on"
            yield wrong("history", detail, "use a node that keeps all blocks and logs, because the index needs them")
        else:
            yield right("history", f"blocks and logs from deployBlock on ({head - first} blocks)")

    async def _check_state(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        """Check that the node has the state of old blocks. The coordinator reads claims CONFIRMATIONS blocks below the
        head, and explains a revert from the state at the transaction's block."""
        needed = self.config.confirmations
        for depth in sorted(
            {needed, min(_STATE_DEPTH_BLOCKS, head), min(10 * _STATE_DEPTH_BLOCKS, head)}, reverse=True
        ):
            try:
                await rpc.call("eth_getBalance", hex_of(self.address_book.job_registry), hex(max(head - depth, 0)))
            except RpcError as error:
                if depth <= needed:
                    detail = f"the node has no state of {depth} blocks ago ({error})"
                    yield wrong("state", detail, "lower CONFIRMATIONS, or use a node that keeps this state")
                continue
            yield right("state", f"the node has the state of {depth} blocks ago")
            return

    async def _check_log_range(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        width = cap = self.config.getlogs_cap
        while True:
            log_filter = {
                **registries_filter(self.address_book),
                "fromBlock": hex(max(head - width + 1, 0)),
                "toBlock": hex(head),
            }
            try:
                await rpc.call("eth_getLogs", log_filter)
                break
            except RpcError as error:
                if width == 1 or error.kind is RpcErrorKind.RATE_LIMITED:
                    yield wrong("log range", f"the node rejects eth_getLogs ({error})", "use another node")
                    return
            width = max(width // 2, 1)
        if width == cap:
            yield right("log range", f"the node accepts {cap} blocks in one log query")
        else:
            detail = f"the node accepts {width} blocks in one log query"
            yield fact(
                "log range", detail, f"set GETLOGS_CAP={width}, so that the index sends no queries that are rejected"
            )

    async def _check_gas(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        limit = (await read_latest_block(rpc)).gas_limit
        if limit < _MIN_BLOCK_GAS:
            detail = f"a block has at most {limit:,} gas, and a transaction may use half of it"
            yield wrong("gas", detail, f"use a chain with {_MIN_BLOCK_GAS:,} gas per block, which the largest ops need")
            return
        max_gas = min(TX_GAS_CAP, limit // 2)
        trial = {
            "from": hex_of(self.address_book.job_registry),
            "to": hex_of(self.address_book.job_registry),
            "gas": hex(max_gas),
        }
        try:
            await rpc.call("eth_call", {**trial, "data": hex_of(abi.selector("DOMAIN_SEPARATOR()"))}, "latest")
        except RpcError as error:
            remedy = "raise the gas that the node allows for a call (--rpc.gascap)"
            yield wrong("gas", f"the node does not execute a call with {max_gas:,} gas ({error})", remedy)
            return
        why = "EIP-7825, half a block"
        yield right("gas", f"a block has at most {limit:,}; a transaction uses at most {max_gas:,} ({why})")


async def check_all_nodes(config: Config) -> tuple[list[NodeChecks], list[CheckRow]]:
    """Check all nodes concurrently. Return the checks, and all rows: one row for each check of the first node, and one
    row for each further node."""
    names = node_names(config.node_urls)
    checks = [NodeChecks(config, url, name) for url, name in zip(config.node_urls, names, strict=True)]
    found = await run_each_part([CheckPart("node", check.rows, NODE_REMEDY, _CHECKS_TIMEOUT_S) for check in checks])
    for check, rows in zip(checks, found, strict=True):
        lag = _describe_lag(check, checks, config.limits.rpc_lag_blocks)
        if lag is not None:
            rows[0] = wrong("node", lag, "find out which of the nodes is behind or on another chain")
    others = [
        _summary_row(number, check, rows) for number, (check, rows) in enumerate(zip(checks, found, strict=True), 1)
    ]
    return checks, found[0] + others[1:]


def _describe_lag(check: NodeChecks, checks: Sequence[NodeChecks], max_lag_blocks: int) -> str | None:
    """Return a description if the node's head is too far from the median head, otherwise None.

    The running coordinator compares heads in the same way. Of two heads, the higher counts as the median.
    """
    heads = sorted((other.head, other.name) for other in checks if other.head is not None)
    if check.head is None or abs(check.head - heads[len(heads) // 2][0]) <= max_lag_blocks:
        return None
    reference, name = heads[len(heads) // 2]
    return f"{check.name} is at block {check.head}, {name} at {reference}: more than {max_lag_blocks} blocks apart"


def _summary_row(number: int, check: NodeChecks, rows: Sequence[CheckRow]) -> CheckRow:
    """Return one row for a node of RPC_URLS. The row lists the node's faults, or all results if there are no faults."""
    faults = [row for row in rows if row.result is CheckResult.WRONG]
    if not faults:
        return right(f"node {number}", "; ".join(row.detail for row in rows))
    details = [row.detail if row.what == "node" else f"{row.what}: {row.detail}" for row in faults]
    detail = "; ".join(details)
    return wrong(f"node {number}", detail if check.name in detail else f"{check.name}: {detail}", _OTHER_NODE_REMEDY)


def registries_filter(book: AddressBook) -> dict[str, object]:
    """Return the log filter for the registries' addresses."""
    return {"address": [hex_of(a) for a in (book.provider_registry, book.job_registry, book.ask_registry)]}


def _clock_row(block_time: int) -> CheckRow:
    age = time.time() - block_time
    if age < -_MAX_BLOCK_AHEAD_S:
        detail = f"this clock is {-age:.0f} s behind the newest block"
        return wrong(
            "clock and chain",
            detail,
            "synchronise this clock (timedatectl): otherwise signed ops are rejected as StaleOp",
        )
    if age > _STALE_HEAD_S:
        detail = f"the newest block is {age:.0f} s old"
        remedy = "check that this clock is right, the chain produces blocks and the node is not behind"
        return wrong("clock and chain", detail, remedy)
    return right("clock and chain", f"the newest block is {max(age, 0):.0f} s old")
