"""Verification of a deployed market: each fact on the chain beside what it must be."""

from collections.abc import Iterator

from common.address_book import AddressBook
from common.domains import Domains
from coordinatord.market.contracts import checksum
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS
from coordinatord.market.reading import Market, Registry, separators_of
from coordinatord.market.table import Row, checked
from coordinatord.market.terms import Model, Terms


def soundness(market: Market, book: AddressBook) -> list[Row]:
    """What must hold of every market, whatever its terms: its code, its wiring, its money, its address book."""
    return list(_registries(market, book)) + list(_wiring(market, book))


def conformity(market: Market, terms: Terms) -> list[Row]:
    """What the terms say, and nothing beside it."""
    return list(_ownership(market, terms)) + list(_settings(market, terms))


def _registries(market: Market, book: AddressBook) -> Iterator[Row]:
    separators = separators_of(book)
    yield checked("chain", market.chain_id, book.chain_id)
    for name, registry in market.registries.items():
        address = registry.contract.address
        yield checked(f"{name}: code at {address} is this release's", registry.code_is_ours, True)
        yield checked(f"{name}: signing domain", registry.separator, separators[name])
        yield checked(
            f"{name}: deployed in the address book's deployBlock or later", registry.created is not None, True
        )


def _wiring(market: Market, book: AddressBook) -> Iterator[Row]:
    at = {name: registry.contract.address for name, registry in market.registries.items()}
    yield checked(f"{JOBS}: token", market.token, checksum(book.paytoken))
    yield checked(f"{JOBS}: provider registry", market.providers_of_jobs, at[PROVIDERS])
    yield checked(f"{ASKS}: provider registry", market.providers_of_asks, at[PROVIDERS])
    yield checked(f"{PROVIDERS}: job registry", market.jobs_of_providers, at[JOBS])
    yield checked("token: decimals", market.token_decimals, book.payment_token_decimals)
    yield checked("token: signing domain", market.token_separator, Domains.of(book).token.separator)
    owed = market.escrowed + market.credits
    yield checked(f"{JOBS}: holds what it owes, {owed} at least", market.held >= owed, True)


def _ownership(market: Market, terms: Terms) -> Iterator[Row]:
    for name, registry in market.registries.items():
        yield checked(f"{name}: owner, or to be when it accepts", _heir(registry), terms.owner)


def _heir(registry: Registry) -> str:
    return registry.pending_owner or registry.owner


def _settings(market: Market, terms: Terms) -> Iterator[Row]:
    yield checked(f"{JOBS}: treasury", market.treasury, terms.treasury)
    yield checked(f"{JOBS}: fee in bps", market.fee_bps, terms.fee_bps)
    yield checked(f"{JOBS}: gas fee", market.gas_fee, terms.gas_fee)
    yield checked(f"{JOBS}: highest gas fee", market.max_gas_fee, terms.max_gas_fee)
    yield checked(f"{JOBS}: gas of a call of the token", market.token_gas, terms.token_gas)
    yield checked(f"{PROVIDERS}: price of a point", market.point_price, terms.point_price)
    yield checked(f"{JOBS}: paused", market.paused, False)
    yield checked(f"{JOBS}: windows in seconds", market.slas, frozenset(terms.slas))
    wanted = {model.model_id: model for model in terms.models}
    for model_id, model in sorted(wanted.items()):
        found, enabled = market.models.get(model_id, (None, False))
        yield checked(f"{JOBS}: model {model_id}", "not set" if found is None else _text(found), _text(model))
        yield checked(f"{JOBS}: model {model_id} enabled", enabled, True)
    others = frozenset(n for n, (_, enabled) in market.models.items() if enabled and n not in wanted)
    yield checked(f"{JOBS}: other models enabled", others, frozenset())
    for name, registry in market.registries.items():
        yield checked(f"{name}: relayers", registry.relayers, frozenset(terms.relayers))


def _text(model: Model) -> str:
    return f"{model.name}, owned by {model.owned_by or 'nobody'}, parameters {model.params_schema or 'unknown'}"
