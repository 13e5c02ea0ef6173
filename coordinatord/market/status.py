"""Status and verification of a deployed market: its facts as rows, for people and as JSON."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import attrs

from common.address_book import AddressBook
from common.domains import Domains
from coordinatord.market.contracts import checksum
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS
from coordinatord.market.fees import in_ether
from coordinatord.market.reading import MarketState, Registry, separators_of
from coordinatord.market.rows import Row, as_json, checked, columns, table, told
from coordinatord.market.terms import MarketTerms, ModelTerms


def soundness(market: MarketState, book: AddressBook) -> list[Row]:
    """Checks of every market, whatever its terms: its code, its wiring, its money, its address book."""
    return list(_registries(market, book)) + list(_wiring(market, book))


def conformity(market: MarketState, terms: MarketTerms) -> list[Row]:
    """Checks that the market has what the terms say, and nothing beside it."""
    return list(_ownership(market, terms)) + list(_settings(market, terms))


def _registries(market: MarketState, book: AddressBook) -> Iterator[Row]:
    separators = separators_of(book)
    yield checked("chain", market.chain_id, book.chain_id)
    for name, registry in market.registries.items():
        address = registry.contract.address
        yield checked(f"{name}: code at {address} is this release's", registry.code_is_ours, True)
        yield checked(f"{name}: signing domain", registry.separator, separators[name])
        yield checked(
            f"{name}: deployed in the address book's deployBlock or later", registry.created is not None, True
        )


def _wiring(market: MarketState, book: AddressBook) -> Iterator[Row]:
    at = {name: registry.contract.address for name, registry in market.registries.items()}
    yield checked(f"{JOBS}: token", market.token, checksum(book.paytoken))
    yield checked(f"{JOBS}: provider registry", market.providers_of_jobs, at[PROVIDERS])
    yield checked(f"{ASKS}: provider registry", market.providers_of_asks, at[PROVIDERS])
    yield checked(f"{PROVIDERS}: job registry", market.jobs_of_providers, at[JOBS])
    yield checked("token: decimals", market.token_decimals, book.payment_token_decimals)
    yield checked("token: signing domain", market.token_separator, Domains.of(book).token.separator)
    owed = market.escrowed + market.credits
    yield checked(f"{JOBS}: holds what it owes, {owed} at least", market.held >= owed, True)


def _ownership(market: MarketState, terms: MarketTerms) -> Iterator[Row]:
    for name, registry in market.registries.items():
        yield checked(f"{name}: owner, or to be when it accepts", _heir(registry), terms.owner)


def _heir(registry: Registry) -> str:
    return registry.pending_owner or registry.owner


def _settings(market: MarketState, terms: MarketTerms) -> Iterator[Row]:
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


def _text(model: ModelTerms) -> str:
    return f"{model.name}, owned by {model.owned_by or 'nobody'}, parameters {model.params_schema or 'unknown'}"


def facts(market: MarketState, book: AddressBook) -> list[Row]:
    """One row each, with a verdict where there can only be one right value."""

    def amount(units: int) -> str:
        return f"{units} ({Decimal(units).scaleb(-book.payment_token_decimals):f})"

    rows = soundness(market, book)
    for name, registry in market.registries.items():
        rows.append(told(f"{name}: owner", registry.owner))
        rows.append(told(f"{name}: pending owner", registry.pending_owner or "none"))
        rows.append(told(f"{name}: relayers", registry.relayers))
    rows += [
        told(f"{JOBS}: paused", market.paused),
        told(f"{JOBS}: fee", f"{market.fee_bps} bps"),
        told(f"{JOBS}: gas fee", amount(market.gas_fee)),
        told(f"{JOBS}: highest gas fee", amount(market.max_gas_fee)),
        told(f"{JOBS}: gas of a call of the token", market.token_gas),
        told(f"{PROVIDERS}: price of a point of reputation", amount(market.point_price)),
        told(f"{JOBS}: windows in seconds", market.slas),
        told(f"{JOBS}: treasury", market.treasury),
        told("treasury: holds", amount(market.treasury_holds)),
        told(f"{JOBS}: escrowed", amount(market.escrowed)),
        told(f"{JOBS}: credits", amount(market.credits)),
        told(f"{JOBS}: holds", amount(market.held)),
    ]
    return rows + [told(f"native funds of {account}", in_ether(wei)) for account, wei in market.native.items()]


def as_text(market: MarketState, rows: Sequence[Row]) -> str:
    models = [
        (str(model.model_id), "enabled" if enabled else "disabled", model.name, model.owned_by or "-")
        for model, enabled in market.models.values()
    ]
    providers = [
        (
            *(str(one.provider_id), one.operator, "listed" if one.listed else "not listed"),
            *("all" if one.all_models else ",".join(map(str, sorted(one.models))) or "none",),
            *(
                f"{one.active_jobs}/{one.capacity}",
                str(one.requested),
                str(one.ceiling),
                str(one.reputation),
                str(one.grace),
            ),
        )
        for one in market.listings
    ]
    allowlist = [(key, status, entry) for key, (status, entry) in market.allowlist.items()]
    sections = [
        f"as of block {market.block}",
        table(rows),
        _section("models", ("id", "", "name", "owned by"), models),
        _section(
            "providers",
            ("id", "operator", "", "models", "jobs/capacity", "requested", "ceiling", "reputation", "grace"),
            providers,
        ),
        _section("escrow allowlist", ("key", "status", "entry"), allowlist),
    ]
    return "\n\n".join(sections)


def as_document(market: MarketState, rows: Sequence[Row]) -> str:
    """The same for programs."""
    document: dict[str, Any] = {
        "block": market.block,
        "facts": as_json(rows),
        "models": [attrs.asdict(model) | {"enabled": enabled} for model, enabled in market.models.values()],
        "providers": [attrs.asdict(one) | {"models": sorted(one.models)} for one in market.listings],
        "allowlist": {key: {"status": status, "entry": entry} for key, (status, entry) in market.allowlist.items()},
    }
    return json.dumps(document, indent=2)


def _section(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return f"{title}: none" if not lines else f"{title}\n{columns([header, *lines])}"
