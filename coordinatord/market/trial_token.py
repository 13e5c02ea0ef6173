"""Deploy a test token as the payment token of a trial market. The deployer can mint tokens."""

from collections.abc import Sequence
from typing import Final

import attrs

from common.daemon.process import Fatal
from coordinatord.market.contracts import Contract, ContractCall, creation_data
from coordinatord.market.sending import ContractAddresses, Sender, SendingStep

TEST_TOKEN_DECIMALS: Final = 6
_TRIAL_CONTRACT: Final = "DevToken"
# Chains on which no test token may be deployed, because the token could be mistaken for real money.
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
    """Tokens to mint for an account. `amount` is in the token's smallest unit."""

    to: str
    amount: int


def reject_main_network(chain_id: int) -> None:
    """Raise Fatal on a well-known main network."""
    if chain_id in MAIN_NETWORKS:
        raise Fatal(
            f"chain {chain_id} is {MAIN_NETWORKS[chain_id]}, a main network: a test token is for test networks only"
            " (name a real token in the market file)"
        )


def deploy_test_token(sender: Sender, mints: Sequence[Mint]) -> str:
    """Deploy the token, mint, and return the token's address. Only the sender, as the token's owner, can mint, pause or
    block accounts."""
    reject_main_network(sender.chain_id)
    steps = [SendingStep("deploy the test token", 1, _TRIAL_CONTRACT, lambda _: _creation_call(sender.signer.address))]
    steps += [_minting_step(mint) for mint in mints]
    sender.run(steps)
    return sender.addresses(steps)[_TRIAL_CONTRACT]


def _creation_call(owner: str) -> ContractCall:
    return ContractCall("deploy the test token", None, creation_data(_TRIAL_CONTRACT, owner))


def _minting_step(mint: Mint) -> SendingStep:
    description = f"mint {mint.amount} base units to {mint.to}"

    def build(addresses: ContractAddresses) -> ContractCall:
        return Contract(_TRIAL_CONTRACT, addresses[_TRIAL_CONTRACT]).build_call(
            description, "mint", mint.to, mint.amount
        )

    return SendingStep(description, 2, None, build)
