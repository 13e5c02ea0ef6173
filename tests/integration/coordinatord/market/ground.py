"""A token on a fresh view of the chain, and markets deployed with it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
from anyio.from_thread import start_blocking_portal
from web3 import Web3
from web3.types import RPCEndpoint

from common.address_book import AddressBook
from coordinatord.chain.signing.signers import LocalKey
from coordinatord.market.contracts import Contract, ContractCall, creation_data
from coordinatord.market.deploy import MarketDeployment, deploy
from coordinatord.market.journal import DeploymentJournal
from coordinatord.market.node import read_nonce
from coordinatord.market.sending import Sender, SendingStep, SendOptions
from coordinatord.market.terms import MarketTerms, ModelTerms
from devnet.accounts import DevWallet, DevWallets
from devnet.anvil import CHAIN_ID, MNEMONIC, find_anvil
from devnet.child import Program, run_program
from devnet.ports import LOOPBACK, pick_free

SPAN = 5000
QUICK = SendOptions(poll_seconds=0.01, timeout_seconds=20)
MODELS = (ModelTerms(7, "lab/words", "lab", '{"type":"object"}'), ModelTerms(9, "lab/pictures"))


@attrs.frozen
class Ground:
    """`deployer` has sent one transaction: the token's deployment."""

    node: Web3
    wallets: DevWallets
    deployer: LocalKey
    token: Contract
    folder: Path

    @property
    def terms(self) -> MarketTerms:
        """Terms whose owner is not the deployer."""
        return MarketTerms(
            chain_id=CHAIN_ID,
            token=self.token.address,
            decimals=6,
            owner=self.heir.address,
            treasury=self.wallets.treasury.address,
            fee_bps=300,
            gas_fee=1234,
            max_gas_fee=5000,
            point_price=250,
            slas=(60, 3600),
            relayers=tuple(wallet.address for wallet in self.wallets.with_role("relayer")),
            models=MODELS,
        )

    @property
    def heir(self) -> DevWallet:
        return self.wallets.with_role("client")[0]

    @property
    def out(self) -> Path:
        return self.folder / "addresses.json"

    def deployment(
        self,
        terms: MarketTerms | None = None,
        node: Web3 | None = None,
        options: SendOptions = QUICK,
        report: Callable[[str], None] = lambda _: None,
    ) -> MarketDeployment:
        return MarketDeployment(node or self.node, self.deployer, terms or self.terms, options, report)

    def deployed(self, terms: MarketTerms | None = None) -> AddressBook:
        return deploy(self.deployment(terms), self.out, SPAN)

    def sent(self) -> int:
        """Return the deployer's transactions, except the token's."""
        return read_nonce(self.node, self.deployer.address, "latest") - 1

    def send(self, key: LocalKey, *calls: ContractCall) -> None:
        send(self.node, key, *calls)

    def rpc(self, method: str, *params: object) -> Any:
        return rpc(self.node, method, *params)


def rpc(node: Web3, method: str, *params: object) -> Any:
    return node.provider.make_request(RPCEndpoint(method), list(params))["result"]


def key_of(wallet: DevWallet) -> LocalKey:
    return LocalKey.from_key(bytes.fromhex(wallet.private_key[2:]))


def send(node: Web3, key: LocalKey, *calls: ContractCall, chain_id: int = CHAIN_ID) -> None:
    steps = [SendingStep(call.description, n, None, lambda _, call=call: call) for n, call in enumerate(calls)]  # type: ignore[misc]
    Sender(node, key, chain_id, QUICK, DeploymentJournal(None, {}), lambda _: None).run(steps)


def created(node: Web3, key: LocalKey, name: str, *arguments: object, chain_id: int = CHAIN_ID) -> Contract:
    step = SendingStep("new", 0, name, lambda _: ContractCall("new", None, creation_data(name, *arguments)))
    sender = Sender(node, key, chain_id, QUICK, DeploymentJournal(None, {}), lambda _: None)
    sender.run([step])
    return Contract(name, sender.addresses([step])[name])


# A public chain, with a token that an unrelated account deployed.

PUBLIC_CHAIN: Final = 4242


@contextmanager
def public_chain(folder: Path) -> Iterator[str]:
    """Start a chain like a public one: timed blocks of 60 million gas, capped transactions, and earlier transactions of
    another account."""
    url = f"http://{LOOPBACK}:{(port := pick_free())}"
    rules = ("--hardfork", "osaka", "--gas-limit", "60000000", "--enable-tx-gas-limit", "--block-time", "0.3")
    place = ("--host", LOOPBACK, "--port", str(port), "--chain-id", str(PUBLIC_CHAIN), "--mnemonic", MNEMONIC)
    (folder / "home").mkdir()
    command = (str(find_anvil()), *place, *rules, "--accounts", "20", "--quiet")
    program = Program("anvil", command, folder / "anvil.log", environment={"HOME": str(folder / "home")})
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(run_program(program)):
        yield url


def issued_token(node: Web3, wallets: DevWallets) -> str:
    """Deploy a token unknown to the product, behind an upgradable proxy, with an unusual name and version."""
    maker, proxy_admin, issuer = key_of(wallets.admin), wallets.treasury.address, wallets.admin.address
    implementation = created(node, maker, "IssuedToken", chain_id=PUBLIC_CHAIN)
    proxy = created(node, maker, "IssuedTokenProxy", implementation.address, proxy_admin, chain_id=PUBLIC_CHAIN)
    token = Contract("IssuedToken", proxy.address)
    send(
        node, maker, token.build_call("initialise", "initialize", issuer, "Market Dollar", "MKD"), chain_id=PUBLIC_CHAIN
    )
    return token.address
