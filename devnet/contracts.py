"""Contracts of the local chain: deployed as `coordinatord market` deploys them, called from unlocked accounts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
from anyio import to_thread
from eth_utils.address import to_checksum_address
from web3 import AsyncHTTPProvider, AsyncWeb3
from web3.contract import AsyncContract
from web3.types import TxReceipt

from common import artifacts
from common.address_book import AddressBook
from coordinatord.chain.signing.signers import LocalKey
from coordinatord.market.deploy import MarketDeployment
from coordinatord.market.journal import DeploymentJournal
from coordinatord.market.node import connect
from coordinatord.market.preflight import check_chain_and_token
from coordinatord.market.sending import SendOptions
from devnet.accounts import Cast
from devnet.catalogue import terms_of_trade

_RECEIPT_POLL_SECONDS: Final = 0.01


@attrs.frozen
class MarketContracts:
    """The deployed contracts, and their address book."""

    chain: "MarketChain"
    book: AddressBook
    token: AsyncContract
    providers: AsyncContract
    jobs: AsyncContract
    asks: AsyncContract


@attrs.frozen
class MarketChain:
    """A node that holds the keys of its accounts, and mines soon enough to wait for every receipt."""

    web3: AsyncWeb3[AsyncHTTPProvider]

    async def deploy(self, name: str, sender: str, *arguments: object) -> tuple[AsyncContract, int]:
        """The contract and the block that created it."""
        artifact = artifacts.load(name)
        factory = self.web3.eth.contract(abi=artifact.abi, bytecode=artifact.bytecode)
        transaction = await factory.constructor(*arguments).transact({"from": sender})
        receipt = await self._mined(transaction)
        return at(self, name, str(receipt["contractAddress"])), receipt["blockNumber"]

    async def send(self, contract: AsyncContract, sender: str, method: str, *arguments: object) -> None:
        await self._mined(await contract.functions[method](*arguments).transact({"from": sender}))

    async def _mined(self, transaction: Any) -> TxReceipt:
        receipt = await self.web3.eth.wait_for_transaction_receipt(
            transaction, timeout=30, poll_latency=_RECEIPT_POLL_SECONDS
        )
        if receipt["status"] != 1:
            raise RuntimeError(f"transaction {receipt['transactionHash'].to_0x_hex()} reverted")
        return receipt


@asynccontextmanager
async def connected(rpc_url: str) -> AsyncIterator[MarketChain]:
    web3 = AsyncWeb3(AsyncHTTPProvider(rpc_url))
    try:
        yield MarketChain(web3)
    finally:
        await web3.provider.disconnect()


def at(chain: MarketChain, name: str, address: str) -> AsyncContract:
    """The contract `name` that was deployed at `address`."""
    return chain.web3.eth.contract(to_checksum_address(address), abi=artifacts.load(name).abi)


async def deploy_all(chain: MarketChain, wallets: Cast, *, issued: bool = False) -> MarketContracts:
    """A token, and a market of it: the registries wired, with its terms set and its relayers appointed. `issued`: with
    the token that behaves as the large ones do, behind its proxy."""
    admin = wallets.admin.address
    token, _ = await (deploy_issued(chain, wallets) if issued else chain.deploy("DevToken", admin, admin))
    rpc_url = str(chain.web3.provider.endpoint_uri)
    book = await to_thread.run_sync(_deploy_market, rpc_url, wallets, str(token.address))
    return MarketContracts(
        chain,
        book,
        token,
        at(chain, "ProviderRegistry", book.provider_registry.hex()),
        at(chain, "JobRegistry", book.job_registry.hex()),
        at(chain, "AskRegistry", book.ask_registry.hex()),
    )


async def deploy_issued(chain: MarketChain, wallets: Cast) -> tuple[AsyncContract, int]:
    """An IssuedToken at its proxy's address; the treasury upgrades it, the admin issues."""
    admin = wallets.admin.address
    implementation, block = await chain.deploy("IssuedToken", admin)
    proxy, _ = await chain.deploy("IssuedTokenProxy", admin, implementation.address, wallets.treasury.address)
    token = at(chain, "IssuedToken", str(proxy.address))
    await chain.send(token, admin, "initialize", admin, "Issued Dollar", "IUSD")
    return token, block


def _deploy_market(rpc_url: str, wallets: Cast, token: str) -> AddressBook:
    options = SendOptions(poll_seconds=_RECEIPT_POLL_SECONDS)
    with connect(rpc_url) as node:
        terms = terms_of_trade(wallets, token, node.eth.chain_id)
        facts, _ = check_chain_and_token(node, terms)
        admin = LocalKey.of(bytes.fromhex(wallets.admin.private_key[2:]))
        return MarketDeployment(node, admin, terms, options, _unheard).carry_out(facts, DeploymentJournal(None, {}))


def _unheard(line: str) -> None:
    """A local deployment takes less time than its lines take to read."""
