"""Read a deployed market from the chain: every fact that an admin can set or that the deployment fixed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from web3 import Web3

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.market.admin_events import AdminEvent, read_admin_events
from coordinatord.market.contracts import ZERO_ADDRESS, Contract, checksum_address, is_code_of
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS, REGISTRIES
from coordinatord.market.node import read_balance, read_code
from coordinatord.market.terms import ModelTerms

_TOKEN_INTERFACE: Final = "DevToken"  # noqa: S105 - a contract with the interface of every payment token

ALLOWLIST_STATUSES: Final = ("none", "allowed", "tombstoned")


@attrs.frozen(slots=True)
class Registry:
    """State of one registry. `created` is the block and the transaction of the registry's deployment, or None if the
    deployment is not in the logs."""

    contract: Contract
    has_release_code: bool
    separator: bytes
    owner: str
    pending_owner: str | None
    relayers: frozenset[str]
    created: tuple[int, str] | None


@attrs.frozen(slots=True)
class ProviderListing:
    """Provider as the registry stores it. `models` has the models allowed for it, unless `all_models` is True."""

    provider_id: int
    operator: str
    listed: bool
    all_models: bool
    models: frozenset[int]
    reputation: int
    grace: int
    requested: int
    ceiling: int
    capacity: int
    active_jobs: int
    has_box_key: bool


@attrs.frozen(slots=True, kw_only=True)
class MarketState:
    """State of the market at about `block`. Values may be newer, because each value is read from the latest block."""

    block: int
    chain_id: int
    registries: Mapping[str, Registry]
    token: str
    treasury: str
    fee_bps: int
    gas_fee: int
    max_gas_fee: int
    point_price: int
    token_gas: int
    paused: bool
    provider_registry_of_jobs: str
    provider_registry_of_asks: str
    job_registry_of_providers: str
    slas: frozenset[int]
    models: Mapping[int, tuple[ModelTerms, bool]]  # terms, and True if the model is enabled
    listings: tuple[ProviderListing, ...]
    allowlist: Mapping[str, tuple[str, str]]  # by key: status and entry
    token_decimals: int
    token_separator: bytes
    escrowed: int
    credits: int
    job_registry_balance: int
    treasury_balance: int
    native_balances: Mapping[str, int]  # by account, of owners and relayers


def read_market(node: Web3, book: AddressBook, log_range_blocks: int, progress: Callable[[str], None]) -> MarketState:
    """Read the market. Raise Fatal if the node serves another chain, or an address has no contract."""
    chain_id = node.eth.chain_id
    if chain_id != book.chain_id:
        raise Fatal(
            f"chainId: the address book is for chain {book.chain_id}, but the RPC endpoint serves chain {chain_id}"
        )
    head = node.eth.block_number
    contracts = contracts_of(book)
    for name, contract in contracts.items():
        if not read_code(node, contract.address):
            raise Fatal(f"{name}: there is no contract at {contract.address}: correct the address book")
    progress(f"reading the events of blocks {book.deploy_block} to {head}")
    events = list(read_admin_events(node, contracts, book.deploy_block, head, log_range_blocks))
    registries = {name: _read_registry(node, contract, events) for name, contract in contracts.items()}
    jobs, providers, asks = contracts[JOBS], contracts[PROVIDERS], contracts[ASKS]
    token = Contract(_TOKEN_INTERFACE, checksum_address(book.paytoken))
    treasury = jobs.read(node, "treasury")
    accounts = {registry.owner for registry in registries.values()}.union(*(r.relayers for r in registries.values()))
    fee_bps, gas_fee = jobs.read(node, "fees")
    return MarketState(
        block=head,
        chain_id=chain_id,
        registries=registries,
        token=jobs.read(node, "token"),
        treasury=treasury,
        fee_bps=fee_bps,
        gas_fee=gas_fee,
        max_gas_fee=jobs.read(node, "maxGasFee"),
        point_price=providers.read(node, "pointPrice"),
        token_gas=jobs.read(node, "tokenGas"),
        paused=jobs.read(node, "paused"),
        provider_registry_of_jobs=jobs.read(node, "providers"),
        provider_registry_of_asks=asks.read(node, "providers"),
        job_registry_of_providers=providers.read(node, "jobRegistry"),
        slas=frozenset(s for s in _event_values(events, "SlaSet", "slaSecs") if jobs.read(node, "slaAllowed", s)),
        models=_read_models(node, jobs, events),
        listings=tuple(_read_listings(node, providers, events)),
        allowlist=_read_allowlist(node, providers, events),
        token_decimals=token.read(node, "decimals"),
        token_separator=token.read(node, "DOMAIN_SEPARATOR"),
        escrowed=jobs.read(node, "escrowed"),
        credits=jobs.read(node, "totalCredits"),
        job_registry_balance=token.read(node, "balanceOf", jobs.address),
        treasury_balance=token.read(node, "balanceOf", treasury),
        native_balances={account: read_balance(node, account) for account in sorted(accounts - {ZERO_ADDRESS})},
    )


def contracts_of(book: AddressBook) -> dict[str, Contract]:
    addresses = {PROVIDERS: book.provider_registry, JOBS: book.job_registry, ASKS: book.ask_registry}
    return {name: Contract(name, checksum_address(addresses[name])) for name in REGISTRIES}


def expected_separators(book: AddressBook) -> dict[str, bytes]:
    """Return the signing domain that each registry must have."""
    domains = Domains.of(book)
    return {PROVIDERS: domains.providers.separator, JOBS: domains.jobs.separator, ASKS: domains.asks.separator}


def _read_registry(node: Web3, contract: Contract, events: list[AdminEvent]) -> Registry:
    own = [event for event in events if event.contract == contract.name]
    first = next(
        (e for e in own if e.name == "OwnershipTransferred" and e.values["previousOwner"] == ZERO_ADDRESS), None
    )
    pending = contract.read(node, "pendingOwner")
    return Registry(
        contract,
        is_code_of(contract.name, read_code(node, contract.address)),
        contract.read(node, "DOMAIN_SEPARATOR"),
        contract.read(node, "owner"),
        None if pending == ZERO_ADDRESS else pending,
        frozenset(r for r in _event_values(own, "RelayerSet", "relayer") if contract.read(node, "isRelayer", r)),
        None if first is None else (first.block, first.transaction),
    )


def _read_models(node: Web3, jobs: Contract, events: list[AdminEvent]) -> dict[int, tuple[ModelTerms, bool]]:
    latest = {event.values["modelId"]: event.values for event in events if event.name == "ModelSet"}
    return {
        model_id: (
            ModelTerms(model_id, values["name"], values["ownedBy"], values["paramsSchema"]),
            jobs.read(node, "modelEnabled", model_id),
        )
        for model_id, values in sorted(latest.items())
    }


def _read_listings(node: Web3, providers: Contract, events: list[AdminEvent]) -> list[ProviderListing]:
    pairs = {(e.values["providerId"], e.values["modelId"]) for e in events if e.name == "ModelAllowed"}
    ids = range(1, providers.read(node, "providerCount") + 1)
    listings = (_read_listing(node, providers, n, pairs) for n in ids)
    return [listing for listing in listings if listing.operator != ZERO_ADDRESS]  # a provider that left has no operator


def _read_listing(node: Web3, providers: Contract, provider_id: int, pairs: set[tuple[int, int]]) -> ProviderListing:
    stored = read_provider(node, providers, provider_id)
    models = sorted(model for owner, model in pairs if owner == provider_id)
    return ProviderListing(
        provider_id=provider_id,
        operator=stored["operator"],
        listed=stored["listed"],
        all_models=stored["allowAllModels"],
        # `modelAllowed` returns true for every model if all are allowed.
        models=frozenset(
            m for m in models if not stored["allowAllModels"] and providers.read(node, "modelAllowed", provider_id, m)
        ),
        reputation=stored["reputation"],
        grace=stored["grace"],
        requested=stored["requested"],
        ceiling=stored["ceiling"],
        capacity=providers.read(node, "capacityOf", provider_id),
        active_jobs=stored["activeJobs"],
        has_box_key=any(stored["boxKey"]),
    )


def read_provider(node: Web3, providers: Contract, provider_id: int) -> dict[str, Any]:
    """Return the members of the contract's struct `Provider`, by name."""
    values: dict[str, Any] = providers.read(node, "provider", provider_id)._asdict()
    return values


def _read_allowlist(node: Web3, providers: Contract, events: list[AdminEvent]) -> dict[str, tuple[str, str]]:
    latest = {event.values["key"]: event.values["entry"] for event in events if event.name == "AllowlistSet"}
    return {
        hex_of(key): (ALLOWLIST_STATUSES[providers.read(node, "allowlistStatus", key)], entry)
        for key, entry in latest.items()
    }


def _event_values(events: list[AdminEvent], name: str, field: str) -> list[Any]:
    return sorted({event.values[field] for event in events if event.name == name})
