"""A token on a fresh view of the chain, and markets deployed with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from common.address_book import AddressBook
from coordinatord.market.contracts import Call, Contract, creation
from coordinatord.market.deploy import Deployment, deploy
from coordinatord.market.journal import Journal
from coordinatord.market.node import Node
from coordinatord.market.sending import Sender, SendOptions, Step
from coordinatord.market.signers import LocalKey
from coordinatord.market.terms import Model, Terms
from devnet.accounts import Cast, DevWallet
from devnet.anvil import CHAIN_ID

SPAN = 5000
QUICK = SendOptions(poll_seconds=0.01, timeout_seconds=20)
MODELS = (Model(7, "lab/words", "lab", '{"type":"object"}'), Model(9, "lab/pictures"))


@attrs.frozen
class Ground:
    """`deployer` has sent one transaction: the token's deployment."""

    node: Node
    cast: Cast
    deployer: LocalKey
    token: Contract
    folder: Path

    @property
    def terms(self) -> Terms:
        """Whose owner is somebody else than the deployer."""
        return Terms(
            chain_id=CHAIN_ID,
            token=self.token.address,
            decimals=6,
            owner=self.heir.address,
            treasury=self.cast.treasury.address,
            fee_bps=300,
            gas_fee=1234,
            max_gas_fee=5000,
            point_price=250,
            slas=(60, 3600),
            relayers=tuple(wallet.address for wallet in self.cast.with_role("relayer")),
            models=MODELS,
        )

    @property
    def heir(self) -> DevWallet:
        return self.cast.with_role("client")[0]

    @property
    def out(self) -> Path:
        return self.folder / "addresses.json"

    def deployment(
        self,
        terms: Terms | None = None,
        node: Node | None = None,
        options: SendOptions = QUICK,
        say: Callable[[str], None] = lambda _: None,
    ) -> Deployment:
        return Deployment(node or self.node, self.deployer, terms or self.terms, options, say)

    def deployed(self, terms: Terms | None = None) -> AddressBook:
        return deploy(self.deployment(terms), self.out, SPAN)

    def sent(self) -> int:
        """Transactions of the deployer, the token's left out."""
        return self.node.nonce(self.deployer.address, "latest") - 1

    def send(self, key: LocalKey, *calls: Call) -> None:
        send(self.node, key, *calls)

    def rpc(self, method: str, *params: object) -> Any:
        return self.node.request(method, *params)


def key_of(wallet: DevWallet) -> LocalKey:
    return LocalKey.of(bytes.fromhex(wallet.private_key[2:]))


def send(node: Node, key: LocalKey, *calls: Call, chain_id: int = CHAIN_ID) -> None:
    steps = [Step(call.words, n, None, lambda _, call=call: call) for n, call in enumerate(calls)]  # type: ignore[misc]
    Sender(node, key, chain_id, QUICK, Journal(None, {}), lambda _: None).run(steps)


def created(node: Node, key: LocalKey, name: str, *arguments: object, chain_id: int = CHAIN_ID) -> Contract:
    step = Step("new", 0, name, lambda _: Call("new", None, creation(name, *arguments)))
    sender = Sender(node, key, chain_id, QUICK, Journal(None, {}), lambda _: None)
    sender.run([step])
    return Contract(name, sender.addresses([step])[name])
