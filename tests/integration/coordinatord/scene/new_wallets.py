"""New wallets, unknown to every coordinator."""

import secrets

from common.box import SecretKey
from common.secp256k1 import Wallet
from devnet.contracts import connect_to_chain, contract_at
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage


async def wallet_with(stage: Stage, balance: int, secret: bytes | None = None) -> Party:
    wallet, box = Wallet(secret or secrets.token_bytes(32)), SecretKey.generate()
    ground = stage.ground
    party = Party(wallet, ground.domains, ground.config.addresses.job_registry, stage.http, box.public.raw)
    await fund(stage, party, balance)
    return party


async def fund(stage: Stage, party: Party, amount: int) -> None:
    async with connect_to_chain(stage.world.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", stage.world.market.token)
        sender = stage.world.wallets.with_role("client")[1].address
        await chain.send(token, sender, "transfer", chain.web3.to_checksum_address(party.address), amount)
