"""A deployed market, read from the chain: every fact that an admin can set or that a deployment fixes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from web3 import Web3

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.market.admin_events import Event, admin_events
from coordinatord.market.contracts import ZERO, Contract, checksum, is_code_of
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS, REGISTRIES
from coordinatord.market.node import balance_of, code_at
from coordinatord.market.terms import ModelTerms

_TOKEN: Final = "DevToken"  # noqa: S105 - a contract with the interface of every payment token

STATUSES: Final = ("none", "allowed", "tombstoned")


@attrs.frozen(slots=True)
class Registry:
    """One registry. `created`: block and transaction of its deployment, or None when the logs do not have them."""

    contract: Contract
    code_is_ours: bool
    separator: bytes
    owner: str
    pending_owner: str | None
    relayers: frozenset[str]
    created: tuple[int, str] | None


@attrs.frozen(slots=True)
class Listing:
    """A provider, as its registry has it. `models`: models that are allowed one by one."""

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
    """State of the market at about `block`. Values that were read last may be from later blocks."""

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
    providers_of_jobs: str
    providers_of_asks: str
    jobs_of_providers: str
    slas: frozenset[int]
    models: Mapping[int, tuple[ModelTerms, bool]]  # True if the model is enabled
    listings: tuple[Listing, ...]
    allowlist: Mapping[str, tuple[str, str]]  # by key: status and entry
    token_decimals: int
    token_separator: bytes
    escrowed: int
    credits: int
    held: int  # tokens that the job registry holds
    treasury_holds: int
    native: Mapping[str, int]  # native balance by account, of owners and relayers


def read_market(node: Web3, book: AddressBook, span: int, progress: Callable[[str], None]) -> MarketState:
    """Read the market. Raise Fatal for another chain than the book's, or another contract at one of its addresses."""
    chain_id = node.eth.chain_id
    if chain_id != book.chain_id:
        raise Fatal(f"chainId: the address book is for chain {book.chain_id}, the RPC endpoint serves {chain_id}")
    head = node.eth.block_number
    contracts = contracts_of(book)
    for name, contract in contracts.items():
        if not code_at(node, contract.address):
            raise Fatal(f"{name}: there is no contract at {contract.address}")
    progress(f"reading the events of blocks {book.deploy_block} to {head}")
    events = list(admin_events(node, contracts, book.deploy_block, head, span))
    registries = {name: _registry(node, contract, events) for name, contract in contracts.items()}
    jobs, providers, asks = contracts[JOBS], contracts[PROVIDERS], contracts[ASKS]
    token = Contract(_TOKEN, checksum(book.paytoken))
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
        providers_of_jobs=jobs.read(node, "providers"),
        providers_of_asks=asks.read(node, "providers"),
        jobs_of_providers=providers.read(node, "jobRegistry"),
        slas=frozenset(s for s in _seen(events, "SlaSet", "slaSecs") if jobs.read(node, "slaAllowed", s)),
        models=_models(node, jobs, events),
        listings=tuple(_listings(node, providers, events)),
        allowlist=_allowlist(node, providers, events),
        token_decimals=token.read(node, "decimals"),
        token_separator=token.read(node, "DOMAIN_SEPARATOR"),
        escrowed=jobs.read(node, "escrowed"),
        credits=jobs.read(node, "totalCredits"),
        held=token.read(node, "balanceOf", jobs.address),
        treasury_holds=token.read(node, "balanceOf", treasury),
        native={account: balance_of(node, account) for account in sorted(accounts - {ZERO})},
    )


def contracts_of(book: AddressBook) -> dict[str, Contract]:
    addresses = {PROVIDERS: book.provider_registry, JOBS: book.job_registry, ASKS: book.ask_registry}
    return {name: Contract(name, checksum(addresses[name])) for name in REGISTRIES}


def separators_of(book: AddressBook) -> dict[str, bytes]:
    """Return the signing domain that each registry must have."""
    domains = Domains.of(book)
    return {PROVIDERS: domains.providers.separator, JOBS: domains.jobs.separator, ASKS: domains.asks.separator}


def _registry(node: Web3, contract: Contract, events: list[Event]) -> Registry:
    own = [event for event in events if event.contract == contract.name]
    first = next((e for e in own if e.name == "OwnershipTransferred" and e.values["previousOwner"] == ZERO), None)
    pending = contract.read(node, "pendingOwner")
    return Registry(
        contract,
        is_code_of(contract.name, code_at(node, contract.address)),
        contract.read(node, "DOMAIN_SEPARATOR"),
        contract.read(node, "owner"),
        None if pending == ZERO else pending,
        frozenset(r for r in _seen(own, "RelayerSet", "relayer") if contract.read(node, "isRelayer", r)),
        None if first is None else (first.block, first.transaction),
    )


def _models(node: Web3, jobs: Contract, events: list[Event]) -> dict[int, tuple[ModelTerms, bool]]:
    latest = {event.values["modelId"]: event.values for event in events if event.name == "ModelSet"}
    return {
        model_id: (
            ModelTerms(model_id, values["name"], values["ownedBy"], values["paramsSchema"]),
            jobs.read(node, "modelEnabled", model_id),
        )
        for model_id, values in sorted(latest.items())
    }


def _listings(node: Web3, providers: Contract, events: list[Event]) -> list[Listing]:
    pairs = {(e.values["providerId"], e.values["modelId"]) for e in events if e.name == "ModelAllowed"}
    ids = range(1, providers.read(node, "providerCount") + 1)
    listings = (_listing(node, providers, n, pairs) for n in ids)
    return [one for one in listings if one.operator != ZERO]  # the others have left


def _listing(node: Web3, providers: Contract, provider_id: int, pairs: set[tuple[int, int]]) -> Listing:
    stored = provider(node, providers, provider_id)
    models = sorted(model for owner, model in pairs if owner == provider_id)
    return Listing(
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


def provider(node: Web3, providers: Contract, provider_id: int) -> dict[str, Any]:
    """Return the members of the struct `Provider` by name."""
    values: dict[str, Any] = providers.read(node, "provider", provider_id)._asdict()
    return values


def _allowlist(node: Web3, providers: Contract, events: list[Event]) -> dict[str, tuple[str, str]]:
    latest = {event.values["key"]: event.values["entry"] for event in events if event.name == "AllowlistSet"}
    return {
        hex_of(key): (STATUSES[providers.read(node, "allowlistStatus", key)], entry) for key, entry in latest.items()
    }


def _seen(events: list[Event], name: str, field: str) -> list[Any]:
    return sorted({event.values[field] for event in events if event.name == name})
