"""Check the chain's nodes, the contracts and the relayer's account."""

from collections.abc import AsyncIterator
from typing import Final

import attrs

from common import abi
from common.address_book import AddressBook
from common.checks import CheckRow, fact, right, unknown, wrong
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import read_latest_block
from coordinatord.chain.relayer.fees import initial_fee
from coordinatord.chain.relayer.in_flight import PendingTxs
from coordinatord.chain.relayer.role import relayer_role_of
from coordinatord.chain.relayer.signers import AccountSigner
from coordinatord.chain.rpc.client import Rpc, open_rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import View, read_view
from coordinatord.run.chain_checks import check_chain
from coordinatord.run.checks.nodes import REQUEST_TIMEOUT_S, check_all_nodes
from coordinatord.run.config import Config
from coordinatord.run.constructors import relayer_settings
from coordinatord.run.signer import open_signer

_DECIMALS_SELECTOR: Final = abi.selector("decimals()")
_WEI_PER_GWEI: Final = 10**9
_WEI_PER_ETHER: Final = 10**18


@attrs.frozen(slots=True)
class ChainChecks:
    config: Config

    @property
    def address_book(self) -> AddressBook:
        return self.config.addresses

    async def rows(self) -> AsyncIterator[CheckRow]:
        """Yield the checks of every node, and the checks of the market through the first node that serves this
        chain."""
        checks, node_rows = await check_all_nodes(self.config)
        for row in node_rows:
            yield row
        serving = next((check for check in checks if check.head is not None), None)
        if serving is None or serving.head is None:
            return
        async with open_rpc(serving.url, timeout_s=REQUEST_TIMEOUT_S) as rpc:
            market = {
                "contracts": self._check_contracts,
                "deployBlock": self._check_deploy_block,
                "relayer": self._check_relayer,
            }
            for name, check in market.items():
                try:
                    async for row in check(rpc, serving.head):
                        yield row
                except (Retryable, RpcError) as error:
                    yield wrong(name, str(error), "use a node that serves this request")

    async def _check_contracts(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        remedy = "write the addresses of this market into the address book, as `coordinatord market deploy` does"
        try:
            await check_chain(rpc, self.address_book, Domains.of(self.address_book))
        except Fatal as error:
            yield wrong("contracts", str(error), remedy)
            return
        yield right("contracts", "code and signing domains match the address book")
        view = View(self.address_book.paytoken, _DECIMALS_SELECTOR, "config_read")
        decimals = await read_view(rpc, view, lambda data: abi.uint_at(data, 0, 8))
        expected = self.address_book.payment_token_decimals
        if decimals == expected:
            yield right("token decimals", str(decimals))
        else:
            detail = f"the address book has {expected}, the token reports {decimals}"
            yield wrong("token decimals", detail, f"set paymentTokenDecimals to {decimals} in the address book")

    async def _check_deploy_block(self, rpc: Rpc, head: int) -> AsyncIterator[CheckRow]:
        """Check deployBlock. If deployBlock is too high, the index misses events. If it is too low, the first start is
        slow."""
        first = self.address_book.deploy_block
        if first > head:
            detail = f"block {first} is above the node's head, {head}"
            yield wrong("deployBlock", detail, "use this market's address book, or a node that has caught up")
            return
        try:
            before = first > 0 and await self._is_any_registry_deployed(rpc, first - 1)
            deployed = await self._is_any_registry_deployed(rpc, first)
        except RpcError:
            yield unknown("deployBlock", f"{first}; the node has no state of this block", "check with an archive node")
            return
        if before:
            detail = f"a registry was deployed before block {first}, so the index would miss its first events"
            yield wrong("deployBlock", detail, "set deployBlock to the block of the first registry's deployment")
        elif not deployed:
            yield fact(
                "deployBlock",
                f"{first}, before the first registry was deployed",
                "a later block makes the first start faster",
            )
        else:
            yield right("deployBlock", f"{first}, where the first registry was deployed")

    async def _is_any_registry_deployed(self, rpc: Rpc, block: int) -> bool:
        book = self.address_book
        for address in (book.provider_registry, book.job_registry, book.ask_registry):
            if await rpc.call("eth_getCode", hex_of(address), hex(block)) not in ("0x", None):
                return True
        return False

    async def _check_relayer(self, rpc: Rpc, _: int) -> AsyncIterator[CheckRow]:
        try:
            async with open_signer(self.config) as signer:
                async for row in self._check_account(rpc, signer):
                    yield row
        except Fatal as error:
            yield wrong("relayer", str(error), "set one key, keystore or signer (docs/operators/running.md)")

    async def _check_account(self, rpc: Rpc, signer: AccountSigner) -> AsyncIterator[CheckRow]:
        settings = relayer_settings(self.config)
        address, role = hex_of(signer.address), relayer_role_of(self.address_book, signer.address)
        account = RelayerAccount(
            self.address_book.chain_id,
            signer,
            PendingTxs(()),
            PendingTxs(()),
            fee_ceiling=settings.fee_ceiling,
            role=role,
        )
        await account.read(rpc, await read_latest_block(rpc))
        if role.missing_in is None:
            yield wrong(
                "relayer role",
                f"the registries do not answer isRelayer({address})",
                "check that the registries are contracts of this release",
            )
        elif role.missing_in:
            remedy = f"let the registries' owner grant the role: coordinatord market admin grant-relayer {address}"
            yield wrong("relayer role", f"{address} lacks the role in {', '.join(role.missing_in)}", remedy)
        else:
            yield right("relayer role", f"{address} has the role in all three registries")
        fee = initial_fee(account.fee_market, account.fee_ceiling).max_fee
        reserve = settings.reserve_gas * fee
        holds = (
            f"{address} holds {_format_ether(account.balance_wei)}, "
            f"the reserve is {_format_ether(reserve)} at the current gas price"
        )
        if account.balance_wei < reserve:
            remedy = "send native funds to the account; below the reserve, only exits and cancels are relayed"
            yield wrong("relayer funds", holds, remedy)
        else:
            yield right("relayer funds", holds)
        ceiling = account.fee_ceiling
        if ceiling.max_fee is not None and ceiling.is_below(account.fee_market):
            detail = f"the chain's fee exceeds the ceiling of {ceiling.max_fee / _WEI_PER_GWEI:g} gwei"
            remedy = (
                "raise RELAY_MAX_FEE_GWEI, or wait for lower fees: until then settles, fails and reclaims wait,"
                " other ops are rejected"
            )
            yield wrong("fees", detail, remedy)


def _format_ether(wei: int) -> str:
    return f"{wei / _WEI_PER_ETHER:.6f}".rstrip("0").rstrip(".")
