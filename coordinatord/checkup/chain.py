"""The node, the contracts behind it, and the relayer's account, looked at as a coordinator will need them."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

import attrs
import msgspec

from common import abi
from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc import Quantity, Rpc, View, open_rpc, quantity, read_view
from coordinatord.chain.rpc_errors import Meaning, RpcError
from coordinatord.checkup.rows import CheckRow, right, told, wrong
from coordinatord.config import Config
from coordinatord.dependencies import check_chain
from coordinatord.relayer.account import RelayerAccount
from coordinatord.relayer.coalesce import TX_GAS_CAP
from coordinatord.relayer.fees import latest_block, offer
from coordinatord.relayer.pending import PendingTxs
from coordinatord.relayer.role import role_in
from coordinatord.relayer.settings import RelayerSettings
from coordinatord.relayer.signers import AccountSigner, open_signer

NODE_REMEDY: Final = "point RPC_URL to a node that answers"
_DECIMALS: Final = abi.selector("decimals()")
_LEAST_BLOCK_GAS: Final = 8_000_000  # half of it holds the dearest op alone, and what a transaction of many needs once
_STALE: Final = 600.0  # seconds: signatures count for as long
_AHEAD: Final = 15.0  # seconds that a block may be ahead of a clock that is right
_DEPTH: Final = 128  # blocks whose state every node keeps
_ETHER: Final = 10**18


class _Block(msgspec.Struct):
    number: Quantity
    timestamp: Quantity


@attrs.frozen(slots=True)
class ChainLook:
    config: Config

    @property
    def book(self) -> AddressBook:
        return self.config.addresses

    async def rows(self) -> AsyncIterator[CheckRow]:
        async with AsyncExitStack() as stack:
            rpc = await stack.enter_async_context(open_rpc(self.config.rpc_url.reveal(), patience=8))
            seen = quantity(await rpc.call("eth_chainId"))
            head = await rpc.call_as(_Block, "eth_getBlockByNumber", "latest", False)
            host = urlsplit(self.config.rpc_url.reveal()).hostname
            if seen != self.book.chain_id:
                detail = f"{host} serves chain {seen}, and the address book is for chain {self.book.chain_id}"
                yield wrong("node", detail, "point RPC_URL to a node of that chain, or take the right address book")
                return
            number = int(head.number, 16)
            yield right("node", f"{host}: chain {seen}, block {number}")
            yield _clock(int(head.timestamp, 16))
            looks = {
                "contracts": self._contracts,
                "deployBlock": self._deploy_block,
                "state": self._state,
                "log range": self._log_range,
                "gas": self._gas,
                "relayer": self._relayer,
            }
            for name, look in looks.items():
                try:
                    async for row in look(rpc, number):
                        yield row
                except (Retryable, RpcError) as error:
                    yield wrong(name, str(error), "the node refuses what a coordinator has to ask: take another")
            for url in self.config.node_urls[1:]:
                yield await self._other_node(url, number)

    async def _other_node(self, url: str, head: int) -> CheckRow:
        """One of RPC_URLS beside the first node."""
        host, lag = urlsplit(url).hostname, self.config.rpc_lag_blocks
        remedy = "take another address into RPC_URLS, or leave this one out"
        try:
            async with open_rpc(url, patience=8) as rpc:
                seen = quantity(await rpc.call("eth_chainId"))
                number = quantity(await rpc.call("eth_blockNumber"))
        except (Retryable, RpcError) as error:
            return wrong("node of RPC_URLS", f"{host}: {error}", remedy)
        if seen != self.book.chain_id:
            return wrong("node of RPC_URLS", f"{host} serves chain {seen}", remedy)
        if abs(number - head) > lag:
            detail = f"{host} is at block {number}, the first node at {head}: more than RPC_LAG_BLOCKS ({lag}) apart"
            return wrong("node of RPC_URLS", detail, "see which of the two is behind")
        return right("node of RPC_URLS", f"{host}: chain {seen}, block {number}")

    async def _contracts(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        remedy = "write the addresses of this market into the address book, as `coordinatord market deploy` does"
        try:
            await check_chain(rpc, self.book, Domains.of(self.book))
        except Fatal as other:
            yield wrong("contracts", str(other), remedy)
            return
        yield right("contracts", "code and signing domains are the address book's")
        view = View(self.book.paytoken, _DECIMALS, "config_read")
        decimals = await read_view(rpc, view, lambda data: abi.uint_at(data, 0, 8))
        ours = self.book.payment_token_decimals
        if decimals == ours:
            yield right("token decimals", str(decimals))
        else:
            detail = f"the address book says {ours}, the token {decimals}"
            yield wrong("token decimals", detail, f"set paymentTokenDecimals to {decimals} in the address book")

    async def _deploy_block(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        """Too high, and the first events are missed; too low, and the first start takes longer."""
        first = self.book.deploy_block
        if first > head:
            detail = f"block {first} is above the node's head, {head}"
            yield wrong("deployBlock", detail, "take this market's address book, or a node that has caught up")
            return
        block = await rpc.call("eth_getBlockByNumber", hex(first), False)
        logs = {**self._registries(), "fromBlock": hex(first), "toBlock": hex(first)}
        try:
            await rpc.call("eth_getLogs", logs)
        except RpcError as error:
            block = None if error.meaning is not Meaning.RATE_LIMITED else block
        if block is None:
            detail = f"the node has no blocks and logs from {first} on"
            yield wrong("history", detail, "take a node that keeps them: the index is made of them, also anew")
        else:
            yield right("history", f"blocks and logs from deployBlock on ({head - first} blocks)")
        try:
            before = first > 0 and await self._deployed(rpc, first - 1)
            there = await self._deployed(rpc, first)
        except RpcError:
            yield told("deployBlock", f"{first}; the node keeps no state of it to compare with")
            return
        if before:
            detail = f"a registry stood there before block {first}, so that its first events would be missed"
            yield wrong("deployBlock", detail, "set it to the block of the first registry's deployment")
        elif not there:
            yield told("deployBlock", f"{first}: no registry stands there yet, a later block would do")
        else:
            yield right("deployBlock", f"{first}, where the first registry was deployed")

    async def _deployed(self, rpc: Rpc, block: int) -> bool:
        book = self.book
        for address in (book.provider_registry, book.job_registry, book.ask_registry):
            if await rpc.call("eth_getCode", hex_of(address), hex(block)) not in ("0x", None):
                return True
        return False

    async def _state(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        """Claims are read at CONFIRMATIONS below the head, and refusals at the block that they were mined in."""
        needed = self.config.confirmations
        for depth in sorted({needed, min(_DEPTH, head), min(10 * _DEPTH, head)}, reverse=True):
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
            asked = {**self._registries(), "fromBlock": hex(max(head - width + 1, 0)), "toBlock": hex(head)}
            try:
                await rpc.call("eth_getLogs", asked)
                break
            except RpcError as error:
                if width == 1 or error.meaning is Meaning.RATE_LIMITED:
                    yield wrong("log range", f"the node answers no eth_getLogs ({error})", "take another node")
                    return
            width = max(width // 2, 1)
        if width == cap:
            yield right("log range", f"the node takes {cap} blocks at a time")
        else:
            detail = f"the node takes {width} blocks at a time: GETLOGS_CAP={width} spares the index finding that out"
            yield told("log range", detail)

    def _registries(self) -> dict[str, object]:
        book = self.book
        return {"address": [hex_of(a) for a in (book.provider_registry, book.job_registry, book.ask_registry)]}

    async def _gas(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        limit = (await latest_block(rpc)).gas_limit
        if limit < _LEAST_BLOCK_GAS:
            detail = f"a block holds {limit:,} gas, and transactions may take half of it"
            yield wrong("gas", detail, f"the chain must allow {_LEAST_BLOCK_GAS:,} for the largest ops to be relayed")
            return
        most = min(TX_GAS_CAP, limit // 2, self.config.relay_max_tx_gas)
        trial = {"from": hex_of(self.book.job_registry), "to": hex_of(self.book.job_registry), "gas": hex(most)}
        try:
            await rpc.call("eth_call", {**trial, "data": hex_of(abi.selector("DOMAIN_SEPARATOR()"))}, "latest")
        except RpcError as error:
            remedy = "lower RELAY_MAX_TX_GAS, or raise what the node lets a call use (--rpc.gascap)"
            yield wrong("gas", f"the node tries no transaction of {most:,} gas ({error})", remedy)
            return
        why = "EIP-7825, half a block, RELAY_MAX_TX_GAS"
        yield right("gas", f"a block holds {limit:,}; a transaction takes {most:,} at most ({why})")

    async def _relayer(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        try:
            async with open_signer(self.config) as signer:
                async for row in self._account(rpc, signer):
                    yield row
        except Fatal as unfit:
            yield wrong("relayer", str(unfit), "see README.md: one key, keystore or signer for the relayer's account")

    async def _account(self, rpc: Rpc, signer: AccountSigner) -> AsyncIterator[CheckRow]:
        config, settings = self.config, RelayerSettings.of(self.config)
        address, role = hex_of(signer.address), role_in(self.book, signer.address)
        account = RelayerAccount(
            self.book.chain_id, signer, PendingTxs(()), PendingTxs(()), ceiling=settings.fee_ceiling, role=role
        )
        await account.read(rpc, await latest_block(rpc))
        if role.missing is None:
            yield wrong("relayer role", f"the registries do not tell of {address}", "are they this release's?")
        elif role.missing:
            remedy = f"its owner gives it: coordinatord market admin grant-relayer {address}"
            yield wrong("relayer role", f"{address} has none in {', '.join(role.missing)}", remedy)
        else:
            yield right("relayer role", f"{address} has it in all three registries")
        fee = offer(account.market, account.ceiling).cap
        reserve = settings.reserve_gas * fee
        holds = f"{address} holds {_ether(account.balance)}, the reserve is {_ether(reserve)} at what gas costs now"
        if account.balance < reserve:
            yield wrong("relayer funds", holds, "send it native funds; below the reserve only exits and cancels go")
        else:
            yield right("relayer funds", holds)
        if account.ceiling.is_below(account.market):
            detail = f"the chain asks for more than {config.relay_max_fee_gwei} gwei"
            yield wrong(
                "fees", detail, "raise RELAY_MAX_FEE_GWEI, or wait: until then exits wait and the rest is refused"
            )


def _clock(block_time: int) -> CheckRow:
    age = time.time() - block_time
    if age < -_AHEAD:
        detail = f"this clock is {-age:.0f} s behind the newest block"
        return wrong("clock and chain", detail, "set it (timedatectl): what is signed would be refused as StaleOp")
    if age > _STALE:
        detail = f"the newest block is {age:.0f} s old"
        return wrong("clock and chain", detail, "is this clock right, does the chain make blocks, is the node behind?")
    return right("clock and chain", f"the newest block is {max(age, 0):.0f} s old")


def _ether(wei: int) -> str:
    return f"{wei / _ETHER:.6f}".rstrip("0").rstrip(".")
