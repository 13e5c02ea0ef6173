"""Show and verify a deployed market, as a table or as JSON."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import attrs

from common.address_book import AddressBook
from common.checks import CheckResult, CheckRow, check_lines, check_records, comparison_row, fact, readable_value
from common.domains import Domains
from common.text_table import grid_lines, terminal_columns
from coordinatord.market.contracts import checksum_address
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS
from coordinatord.market.fees import format_ether
from coordinatord.market.reading import MarketState, Registry, expected_separators
from coordinatord.market.terms import MarketTerms, ModelTerms

_OTHER_MARKET_REMEDY: Final = "use this market's address book, a node of its chain, and the release that deployed it"
_OTHER_TERMS_REMEDY: Final = "correct the market (`coordinatord market admin`) or the market file"


def check_integrity(market: MarketState, book: AddressBook) -> list[CheckRow]:
    """Check code, wiring, balances and address book. These checks do not depend on the market's terms."""
    rows = (*_registry_rows(market, book), *_wiring_rows(market, book))
    return [_with_remedy(row, _OTHER_MARKET_REMEDY) for row in rows]


def check_terms(market: MarketState, terms: MarketTerms) -> list[CheckRow]:
    """Check that the market has exactly the owner, settings, models and relayers of the terms."""
    rows = (*_ownership_rows(market, terms), *_setting_rows(market, terms))
    return [_with_remedy(row, _OTHER_TERMS_REMEDY) for row in rows]


def _with_remedy(row: CheckRow, remedy: str) -> CheckRow:
    return attrs.evolve(row, remedy=remedy) if row.result is CheckResult.WRONG else row


def _registry_rows(market: MarketState, book: AddressBook) -> Iterator[CheckRow]:
    separators = expected_separators(book)
    yield comparison_row("chain", market.chain_id, book.chain_id)
    for name, registry in market.registries.items():
        address = registry.contract.address
        yield comparison_row(f"{name}: code at {address} is this release's", registry.has_release_code, True)
        yield comparison_row(f"{name}: signing domain", registry.separator, separators[name])
        yield comparison_row(
            f"{name}: deployed in the address book's deployBlock or later", registry.created is not None, True
        )


def _wiring_rows(market: MarketState, book: AddressBook) -> Iterator[CheckRow]:
    at = {name: registry.contract.address for name, registry in market.registries.items()}
    yield comparison_row(f"{JOBS}: token", market.token, checksum_address(book.paytoken))
    yield comparison_row(f"{JOBS}: provider registry", market.provider_registry_of_jobs, at[PROVIDERS])
    yield comparison_row(f"{ASKS}: provider registry", market.provider_registry_of_asks, at[PROVIDERS])
    yield comparison_row(f"{PROVIDERS}: job registry", market.job_registry_of_providers, at[JOBS])
    yield comparison_row("token: decimals", market.token_decimals, book.payment_token_decimals)
    yield comparison_row("token: signing domain", market.token_separator, Domains.of(book).token.separator)
    owed = market.escrowed + market.credits
    yield comparison_row(f"{JOBS}: holds at least the {owed} that it owes", market.job_registry_balance >= owed, True)


def _ownership_rows(market: MarketState, terms: MarketTerms) -> Iterator[CheckRow]:
    for name, registry in market.registries.items():
        yield comparison_row(f"{name}: owner, or pending owner", _future_owner(registry), terms.owner)


def _future_owner(registry: Registry) -> str:
    return registry.pending_owner or registry.owner


def _setting_rows(market: MarketState, terms: MarketTerms) -> Iterator[CheckRow]:
    yield comparison_row(f"{JOBS}: treasury", market.treasury, terms.treasury)
    yield comparison_row(f"{JOBS}: fee in bps", market.fee_bps, terms.fee_bps)
    yield comparison_row(f"{JOBS}: gas fee", market.gas_fee, terms.gas_fee)
    yield comparison_row(f"{JOBS}: highest gas fee", market.max_gas_fee, terms.max_gas_fee)
    yield comparison_row(f"{JOBS}: gas limit of a token call", market.token_gas, terms.token_gas)
    yield comparison_row(f"{PROVIDERS}: price of a point", market.point_price, terms.point_price)
    yield comparison_row(f"{JOBS}: paused", market.paused, False)
    yield comparison_row(f"{JOBS}: windows in seconds", market.slas, frozenset(terms.slas))
    wanted = {model.model_id: model for model in terms.models}
    for model_id, model in sorted(wanted.items()):
        found, enabled = market.models.get(model_id, (None, False))
        yield comparison_row(
            f"{JOBS}: model {model_id}", "not set" if found is None else _model_text(found), _model_text(model)
        )
        yield comparison_row(f"{JOBS}: model {model_id} enabled", enabled, True)
    others = frozenset(n for n, (_, enabled) in market.models.items() if enabled and n not in wanted)
    yield comparison_row(f"{JOBS}: other models enabled", others, frozenset())
    for name, registry in market.registries.items():
        yield comparison_row(f"{name}: relayers", registry.relayers, frozenset(terms.relayers))


def _model_text(model: ModelTerms) -> str:
    return f"{model.name}, owned by {model.owned_by or 'nobody'}, parameters {model.params_schema or 'unknown'}"


def fact_rows(market: MarketState, book: AddressBook) -> list[CheckRow]:
    """Return one row per fact. Only facts with a single correct value are marked as right or wrong."""

    def amount(units: int) -> str:
        return f"{units} ({Decimal(units).scaleb(-book.payment_token_decimals):f})"

    rows = check_integrity(market, book)
    for name, registry in market.registries.items():
        rows.append(fact(f"{name}: owner", registry.owner))
        rows.append(fact(f"{name}: pending owner", registry.pending_owner or "none"))
        rows.append(fact(f"{name}: relayers", readable_value(registry.relayers)))
    rows += [
        fact(f"{JOBS}: paused", readable_value(market.paused)),
        fact(f"{JOBS}: fee", f"{market.fee_bps} bps"),
        fact(f"{JOBS}: gas fee", amount(market.gas_fee)),
        fact(f"{JOBS}: highest gas fee", amount(market.max_gas_fee)),
        fact(f"{JOBS}: gas limit of a token call", str(market.token_gas)),
        fact(f"{PROVIDERS}: price of a point of reputation", amount(market.point_price)),
        fact(f"{JOBS}: windows in seconds", readable_value(market.slas)),
        fact(f"{JOBS}: treasury", market.treasury),
        fact("treasury: holds", amount(market.treasury_balance)),
        fact(f"{JOBS}: escrowed", amount(market.escrowed)),
        fact(f"{JOBS}: credits", amount(market.credits)),
        fact(f"{JOBS}: holds", amount(market.job_registry_balance)),
    ]
    return rows + [
        fact(f"native funds of {account}", format_ether(wei)) for account, wei in market.native_balances.items()
    ]


def as_text(market: MarketState, rows: Sequence[CheckRow]) -> str:
    models = [
        (str(model.model_id), "enabled" if enabled else "disabled", model.name, model.owned_by or "-")
        for model, enabled in market.models.values()
    ]
    providers = [
        (
            *(str(listing.provider_id), listing.operator, "listed" if listing.listed else "not listed"),
            *("all" if listing.all_models else ",".join(map(str, sorted(listing.models))) or "none",),
            *(
                f"{listing.active_jobs}/{listing.capacity}",
                str(listing.requested),
                str(listing.ceiling),
                str(listing.reputation),
                str(listing.grace),
            ),
        )
        for listing in market.listings
    ]
    allowlist = [(key, status, entry) for key, (status, entry) in market.allowlist.items()]
    sections = [
        f"as of block {market.block}",
        check_lines(rows, terminal_columns()),
        _format_section("models", ("id", "", "name", "owned by"), models),
        _format_section(
            "providers",
            ("id", "operator", "", "models", "jobs/capacity", "requested", "ceiling", "reputation", "grace"),
            providers,
        ),
        _format_section("escrow allowlist", ("key", "status", "entry"), allowlist),
    ]
    return "\n\n".join(sections)


def as_json(market: MarketState, rows: Sequence[CheckRow]) -> str:
    """Return the status as JSON."""
    document: dict[str, Any] = {
        "block": market.block,
        "facts": check_records(rows),
        "models": [attrs.asdict(model) | {"enabled": enabled} for model, enabled in market.models.values()],
        "providers": [attrs.asdict(listing) | {"models": sorted(listing.models)} for listing in market.listings],
        "allowlist": {key: {"status": status, "entry": entry} for key, (status, entry) in market.allowlist.items()},
    }
    return json.dumps(document, indent=2)


def _format_section(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return f"{title}: none"
    cells = [[cell or "-" if at else cell for at, cell in enumerate(line)] for line in (header, *lines)]
    return "\n".join((title, *grid_lines(cells, terminal_columns(), own_line_cells=2)))
