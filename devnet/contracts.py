"""Deploy the contracts with the code of `coordinatord market`, and call them from the node's unlocked accounts."""

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
from devnet.accounts import DevWallets
from devnet.catalogue import market_terms

_RECEIPT_POLL_INTERVAL_S: Final = 0.01


@attrs.frozen
class MarketContracts:
    """Deployed contracts, the chain that they are on, and their address book."""

    node: "SigningNode"
    address_book: AddressBook
    token: AsyncContract
    providers: AsyncContract
    jobs: AsyncContract
    asks: AsyncContract


@attrs.frozen
class SigningNode:
    """Node that signs transactions for its accounts. Each method waits for the transaction's receipt."""

    web3: AsyncWeb3[AsyncHTTPProvider]

    async def deploy(self, name: str, sender: str, *arguments: object) -> tuple[AsyncContract, int]:
        """Deploy a contract. Return the contract and the block number of its deployment."""
        artifact = artifacts.load_artifact(name)
        factory = self.web3.eth.contract(abi=artifact.abi, bytecode=artifact.bytecode)
        transaction = await factory.constructor(*arguments).transact({"from": sender})
        receipt = await self._wait_until_mined(transaction)
        return contract_at(self, name, str(receipt["contractAddress"])), receipt["blockNumber"]

    async def send(self, contract: AsyncContract, sender: str, method: str, *arguments: object) -> None:
        await self._wait_until_mined(await contract.functions[method](*arguments).transact({"from": sender}))

    async def _wait_until_mined(self, transaction: Any) -> TxReceipt:
        receipt = await self.web3.eth.wait_for_transaction_receipt(
            transaction, timeout=30, poll_latency=_RECEIPT_POLL_INTERVAL_S
        )
        if receipt["status"] != 1:
            raise RuntimeError(f"transaction {receipt['transactionHash'].to_0x_hex()} reverted")
        return receipt


@asynccontextmanager
async def connect_to_chain(rpc_url: str) -> AsyncIterator[SigningNode]:
    web3 = AsyncWeb3(AsyncHTTPProvider(rpc_url))
    try:
        yield SigningNode(web3)
    finally:
        await web3.provider.disconnect()


def contract_at(chain: SigningNode, name: str, address: str) -> AsyncContract:
    """Return the contract `name` at `address`."""
    return chain.web3.eth.contract(to_checksum_address(address), abi=artifacts.load_artifact(name).abi)


async def deploy_all(chain: SigningNode, wallets: DevWallets, *, issued_token: bool = False) -> MarketContracts:
    """Deploy a payment token and a complete market, with its terms and relayers.

    With `issued_token`, deploy an IssuedToken behind a proxy. This token behaves like a large stablecoin.
    """
    admin = wallets.admin.address
    token, _ = await (deploy_issued_token(chain, wallets) if issued_token else chain.deploy("DevToken", admin, admin))
    rpc_url = str(chain.web3.provider.endpoint_uri)
    book = await to_thread.run_sync(_deploy_market, rpc_url, wallets, str(token.address))
    return MarketContracts(
        chain,
        book,
        token,
        contract_at(chain, "ProviderRegistry", book.provider_registry.hex()),
        contract_at(chain, "JobRegistry", book.job_registry.hex()),
        contract_at(chain, "AskRegistry", book.ask_registry.hex()),
    )


async def deploy_issued_token(chain: SigningNode, wallets: DevWallets) -> tuple[AsyncContract, int]:
    """Deploy an IssuedToken behind its proxy. The treasury can upgrade the token, and the admin can mint."""
    admin = wallets.admin.address
    implementation, block = await chain.deploy("IssuedToken", admin)
    proxy, _ = await chain.deploy("IssuedTokenProxy", admin, implementation.address, wallets.treasury.address)
    token = contract_at(chain, "IssuedToken", str(proxy.address))
    await chain.send(token, admin, "initialize", admin, "Issued Dollar", "IUSD")
    return token, block


def _deploy_market(rpc_url: str, wallets: DevWallets, token: str) -> AddressBook:
    options = SendOptions(poll_seconds=_RECEIPT_POLL_INTERVAL_S)
    with connect(rpc_url) as node:
        terms = market_terms(wallets, token, node.eth.chain_id)
        facts, _ = check_chain_and_token(node, terms)
        admin = LocalKey.from_key(bytes.fromhex(wallets.admin.private_key[2:]))
        return MarketDeployment(node, admin, terms, options, _ignore_progress).send_steps(
            facts, DeploymentJournal(None, {})
        )


def _ignore_progress(line: str) -> None:
    """Print nothing, because a local deployment takes only about a second."""
