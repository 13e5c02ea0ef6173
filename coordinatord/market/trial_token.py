"""Payment token for an operator's trial market. Its deployer can mint it."""

from collections.abc import Sequence
from typing import Final

import attrs

from common.daemon.process import Fatal
from coordinatord.market.contracts import Contract, ContractCall, creation
from coordinatord.market.sending import Addresses, Sender, SendingStep

DECIMALS: Final = 6
_CONTRACT: Final = "DevToken"
# By chain id. No test token is deployed on these chains, because it could be mistaken for real money.
MAIN_NETWORKS: Final = {
    1: "Ethereum",
    10: "OP Mainnet",
    25: "Cronos",
    56: "BNB Smart Chain",
    100: "Gnosis",
    130: "Unichain",
    137: "Polygon",
    146: "Sonic",
    250: "Fantom",
    324: "ZKsync Era",
    480: "World Chain",
    999: "HyperEVM",
    1101: "Polygon zkEVM",
    1284: "Moonbeam",
    1329: "Sei",
    5000: "Mantle",
    8453: "Base",
    34443: "Mode",
    42161: "Arbitrum One",
    42170: "Arbitrum Nova",
    42220: "Celo",
    43114: "Avalanche",
    57073: "Ink",
    59144: "Linea",
    80094: "Berachain",
    81457: "Blast",
    534352: "Scroll",
}


@attrs.frozen(slots=True)
class Mint:
    """`amount` is in the token's smallest unit."""

    to: str
    amount: int


def require_trial_chain(chain_id: int) -> None:
    """Raise Fatal on a well-known main network."""
    if chain_id in MAIN_NETWORKS:
        raise Fatal(
            f"chain {chain_id} is {MAIN_NETWORKS[chain_id]}, a main network: a test token is for test networks only"
            " (name a real token in the market file)"
        )


def deploy_test_token(sender: Sender, mints: Sequence[Mint]) -> str:
    """Deploy the token, mint, and return its address. Only its owner, the sender, can mint, pause or block accounts."""
    require_trial_chain(sender.chain_id)
    steps = [SendingStep("deploy the test token", 1, _CONTRACT, lambda _: _creation(sender.signer.address))]
    steps += [_minting(mint) for mint in mints]
    sender.run(steps)
    return sender.addresses(steps)[_CONTRACT]


def _creation(owner: str) -> ContractCall:
    return ContractCall("deploy the test token", None, creation(_CONTRACT, owner))


def _minting(mint: Mint) -> SendingStep:
    words = f"mint {mint.amount} base units to {mint.to}"

    def build(addresses: Addresses) -> ContractCall:
        return Contract(_CONTRACT, addresses[_CONTRACT]).call(words, "mint", mint.to, mint.amount)

    return SendingStep(words, 2, None, build)
