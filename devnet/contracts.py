"""Deploy the contracts as `coordinatord market` does, and call them from the node's unlocked accounts."""

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
    """Deployed contracts, and their address book."""

    chain: "MarketChain"
    book: AddressBook
    token: AsyncContract
    providers: AsyncContract
    jobs: AsyncContract
    asks: AsyncContract


@attrs.frozen
class MarketChain:
    """Node that signs for its accounts. Every call waits for the transaction's receipt."""

    web3: AsyncWeb3[AsyncHTTPProvider]

    async def deploy(self, name: str, sender: str, *arguments: object) -> tuple[AsyncContract, int]:
        """Deploy a contract. Return it and its block."""
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
    """Return the contract `name` at `address`."""
    return chain.web3.eth.contract(to_checksum_address(address), abi=artifacts.load(name).abi)


async def deploy_all(chain: MarketChain, wallets: Cast, *, issued: bool = False) -> MarketContracts:
    """Deploy a payment token and a complete market with its terms and relayers.

    With `issued`, the token is IssuedToken behind a proxy, which behaves like the large stablecoins.
    """
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
    """Deploy an IssuedToken behind its proxy. The treasury can upgrade it, and the admin can mint."""
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
        return MarketDeployment(node, admin, terms, options, _ignore_progress).carry_out(
            facts, DeploymentJournal(None, {})
        )


def _ignore_progress(line: str) -> None:
    """Print nothing: a local deployment takes about a second."""
