"""Open a new market: fund the clients and list the providers."""

from collections.abc import Collection
from typing import Any, Final

import attrs

from common.bundle import announcement
from common.canonical_json import canonical
from devnet.accounts import Cast, DevWallet
from devnet.contracts import MarketContracts

CLIENT_FUNDS: Final = 1_000_000 * 10**6  # one million tokens of six decimals
_CAPACITY: Final = 64
_CEILING: Final = 4_096  # high enough not to limit capacity: request and reputation decide


@attrs.frozen
class DevnetMarket:
    """Address book of the market in plain values, and the ids of its providers."""

    chain_id: int
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
        """Address book as the coordinator reads it."""
        return {
            "chainId": self.chain_id,
            "deployBlock": self.deploy_block,
            "jobRegistry": self.jobs,
            "providerRegistry": self.providers,
            "askRegistry": self.asks,
            "paytoken": self.token,
            "paymentTokenDecimals": self.token_decimals,
            "tokenDomain": {"name": self.token_name, "version": self.token_version},
        }


async def open_market(contracts: MarketContracts, cast: Cast, bundling: Collection[DevWallet] = ()) -> DevnetMarket:
    """Open the market. The `bundling` providers announce that they take bundles."""
    book = contracts.book
    for client in cast.with_role("client"):
        await contracts.chain.send(contracts.token, cast.admin.address, "mint", client.address, CLIENT_FUNDS)
    provider_ids = {
        provider.address: await _admit(
            contracts, cast, provider, canonical(announcement()) if provider in bundling else b""
        )
        for provider in cast.with_role("provider")
    }
    return DevnetMarket(
        book.chain_id,
        book.deploy_block,
        contracts.token.address,
        book.token_domain.name,
        book.token_domain.version,
        book.payment_token_decimals,
        contracts.providers.address,
        contracts.jobs.address,
        contracts.asks.address,
        provider_ids,
    )


async def _admit(contracts: MarketContracts, cast: Cast, provider: DevWallet, evidence: bytes) -> int:
    """Register a provider and list it for every model. Return its id."""
    chain, providers, admin = contracts.chain, contracts.providers, cast.admin.address
    await chain.send(providers, provider.address, "register")
    provider_id = await providers.functions.providerIdOf(provider.address).call()
    # The registry requires a time after the registration.
    now = (await chain.web3.eth.get_block("latest"))["timestamp"] + 1
    # The provider sends these itself, so they need no signature.
    await chain.send(providers, provider.address, "setIdentity", provider.box_key, evidence, now, b"")
    await chain.send(providers, provider.address, "requestCapacity", _CAPACITY, now, b"")
    await chain.send(providers, admin, "setCeiling", provider_id, _CEILING)
    await chain.send(providers, admin, "setAllowAllModels", provider_id, True)
    await chain.send(providers, admin, "setListed", provider_id, True)
    return int(provider_id)
