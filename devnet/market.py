"""Open a newly deployed market: fund the clients, and register and list the providers."""

from collections.abc import Collection
from typing import Any, Final

import attrs

from common import bundle
from common.canonical_json import canonical
from common.tab import terms
from devnet.accounts import DevWallet, DevWallets
from devnet.contracts import MarketContracts

CLIENT_FUNDS: Final = 1_000_000 * 10**6  # one million tokens of six decimals
_ANNOUNCEMENT: Final = canonical(bundle.announcement() | terms.announcement())
_REQUESTED_CAPACITY: Final = 64
_CAPACITY_CEILING: Final = 4_096  # never reached: the requested capacity and the reputation limit a provider's jobs


@attrs.frozen
class DevnetMarket:
    """Deployed market. `token`, `providers`, `jobs` and `asks` are contract addresses in hex."""

    chain_id: int
    deploy_block: int
    token: str
    token_name: str
    token_version: str
    token_decimals: int
    providers: str
    jobs: str
    asks: str
    provider_ids: dict[str, int]  # by the operator's address

    @property
    def address_book(self) -> dict[str, Any]:
        """Address book in the JSON form that the coordinator reads."""
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


async def open_market(
    contracts: MarketContracts, wallets: DevWallets, announcing: Collection[DevWallet] = ()
) -> DevnetMarket:
    """Fund the clients, and register and list the providers. Providers in `announcing` announce bundles and tabs."""
    book = contracts.address_book
    for client in wallets.with_role("client"):
        await contracts.node.send(contracts.token, wallets.admin.address, "mint", client.address, CLIENT_FUNDS)
    provider_ids = {
        provider.address: await _register_provider(
            contracts, wallets, provider, _ANNOUNCEMENT if provider in announcing else b""
        )
        for provider in wallets.with_role("provider")
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


async def _register_provider(
    contracts: MarketContracts, wallets: DevWallets, provider: DevWallet, evidence: bytes
) -> int:
    """Register a provider and list it for every model. Return the provider's id."""
    chain, providers, admin = contracts.node, contracts.providers, wallets.admin.address
    await chain.send(providers, provider.address, "register")
    provider_id = await providers.functions.providerIdOf(provider.address).call()

    # The registry accepts only operations that were signed after the registration.
    now = (await chain.web3.eth.get_block("latest"))["timestamp"] + 1

    # A transaction from the provider's own account needs no signature, so the last argument is empty.
    await chain.send(providers, provider.address, "setIdentity", provider.box_key, evidence, now, b"")
    await chain.send(providers, provider.address, "requestCapacity", _REQUESTED_CAPACITY, now, b"")
    await chain.send(providers, admin, "setCeiling", provider_id, _CAPACITY_CEILING)
    await chain.send(providers, admin, "setAllowAllModels", provider_id, True)
    await chain.send(providers, admin, "setListed", provider_id, True)
    return int(provider_id)
