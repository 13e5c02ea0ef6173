"""Turns freshly deployed contracts into a market: terms, relayers, money, providers."""

import json
from typing import Any, Final

import attrs

from devnet.accounts import Cast, Wallet
from devnet.anvil import CHAIN_ID
from devnet.catalogue import FEE_BPS, GAS_FEE, MODELS, SLA_SECONDS
from devnet.contracts import Contracts

CLIENT_FUNDS: Final = 1_000_000 * 10**6  # a million of the payment token, which has six decimals
_CAPACITY: Final = 64
_CEILING: Final = 128


@attrs.frozen
class Market:
    """Where the market is on the chain."""

    deploy_block: int
    token: str
    token_name: str
    token_version: str
    token_decimals: int
    providers: str
    jobs: str
    asks: str
    provider_ids: dict[str, int]  # by operator

    @property
    def address_book(self) -> dict[str, Any]:
        """What a coordinator takes as its address book."""
        return {
            "chainId": CHAIN_ID,
            "deployBlock": self.deploy_block,
            "jobRegistry": self.jobs,
            "providerRegistry": self.providers,
            "askRegistry": self.asks,
            "paytoken": self.token,
            "paymentTokenDecimals": self.token_decimals,
            "tokenDomain": {"name": self.token_name, "version": self.token_version},
        }


async def open_market(contracts: Contracts, cast: Cast) -> Market:
    await _set_terms(contracts, cast)
    await _appoint_relayers(contracts, cast)
    for client in cast.with_role("client"):
        await contracts.chain.send(contracts.token, cast.admin.address, "mint", client.address, CLIENT_FUNDS)
    provider_ids = {
        provider.address: await _admit(contracts, cast, provider) for provider in cast.with_role("provider")
    }
    name, version = await _token_domain(contracts)
    return Market(
        contracts.deploy_block,
        contracts.token.address,
        name,
        version,
        await contracts.token.functions.decimals().call(),
        contracts.providers.address,
        contracts.jobs.address,
        contracts.asks.address,
        provider_ids,
    )


async def _token_domain(contracts: Contracts) -> tuple[str, str]:
    """Name and version. The token tells its domain (EIP-5267), or its version alone, as the older ones do."""
    token = contracts.token
    if any(entry.get("name") == "eip712Domain" for entry in token.abi):
        _, name, version, *_ = await token.functions.eip712Domain().call()
        return name, version
    return await token.functions.name().call(), await token.functions.version().call()


async def _set_terms(contracts: Contracts, cast: Cast) -> None:
    chain, admin, jobs = contracts.chain, cast.admin.address, contracts.jobs
    await chain.send(jobs, admin, "setFees", FEE_BPS, GAS_FEE)
    for seconds in SLA_SECONDS:
        await chain.send(jobs, admin, "setSla", seconds, True)
    for model in MODELS:
        schema = json.dumps(model.parameters, separators=(",", ":"))
        await chain.send(jobs, admin, "setModel", model.model_id, model.name, True, model.owned_by, schema)


async def _appoint_relayers(contracts: Contracts, cast: Cast) -> None:
    for relayer in cast.with_role("relayer"):
        for registry in (contracts.jobs, contracts.providers, contracts.asks):
            await contracts.chain.send(registry, cast.admin.address, "setRelayer", relayer.address, True)


async def _admit(contracts: Contracts, cast: Cast, provider: Wallet) -> int:
    """Registered and equipped by itself, then listed by the admin for every model. Returns its id."""
    chain, providers, admin = contracts.chain, contracts.providers, cast.admin.address
    await chain.send(providers, provider.address, "register")
    provider_id = await providers.functions.providerIdOf(provider.address).call()
    now = (await chain.web3.eth.get_block("latest"))["timestamp"]
    # Its own transactions: neither needs a signature.
    await chain.send(providers, provider.address, "setIdentity", provider.box_key, b"", now, b"")
    await chain.send(providers, provider.address, "requestCapacity", _CAPACITY, now, b"")
    await chain.send(providers, admin, "setCeiling", provider_id, _CEILING)
    await chain.send(providers, admin, "setAllowAllModels", provider_id, True)
    await chain.send(providers, admin, "setListed", provider_id, True)
    return int(provider_id)
