"""Status and verification of a deployed market: its facts as rows, for people and as JSON."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import attrs

from common.address_book import AddressBook
from common.checks import CheckRow, Result, check_lines, check_records, compared, fact, readable
from common.domains import Domains
from common.text_table import grid, terminal_columns
from coordinatord.market.contracts import checksum
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS
from coordinatord.market.fees import in_ether
from coordinatord.market.reading import MarketState, Registry, separators_of
from coordinatord.market.terms import MarketTerms, ModelTerms

_OTHER_MARKET_REMEDY: Final = "use this market's address book, a node of its chain, and the release that deployed it"
_OTHER_TERMS_REMEDY: Final = "correct the market (`coordinatord market admin`) or the market file"


def soundness(market: MarketState, book: AddressBook) -> list[CheckRow]:
    """Check code, wiring, money and address book. These checks are the same for all market terms."""
    rows = (*_registries(market, book), *_wiring(market, book))
    return [_with_remedy(row, _OTHER_MARKET_REMEDY) for row in rows]


def conformity(market: MarketState, terms: MarketTerms) -> list[CheckRow]:
    """Check that the market matches the terms and has nothing in addition."""
    rows = (*_ownership(market, terms), *_settings(market, terms))
    return [_with_remedy(row, _OTHER_TERMS_REMEDY) for row in rows]


def _with_remedy(row: CheckRow, remedy: str) -> CheckRow:
    return attrs.evolve(row, remedy=remedy) if row.result is Result.WRONG else row


def _registries(market: MarketState, book: AddressBook) -> Iterator[CheckRow]:
    separators = separators_of(book)
    yield compared("chain", market.chain_id, book.chain_id)
    for name, registry in market.registries.items():
        address = registry.contract.address
        yield compared(f"{name}: code at {address} is this release's", registry.code_is_ours, True)
        yield compared(f"{name}: signing domain", registry.separator, separators[name])
        yield compared(
            f"{name}: deployed in the address book's deployBlock or later", registry.created is not None, True
        )


def _wiring(market: MarketState, book: AddressBook) -> Iterator[CheckRow]:
    at = {name: registry.contract.address for name, registry in market.registries.items()}
    yield compared(f"{JOBS}: token", market.token, checksum(book.paytoken))
    yield compared(f"{JOBS}: provider registry", market.providers_of_jobs, at[PROVIDERS])
    yield compared(f"{ASKS}: provider registry", market.providers_of_asks, at[PROVIDERS])
    yield compared(f"{PROVIDERS}: job registry", market.jobs_of_providers, at[JOBS])
    yield compared("token: decimals", market.token_decimals, book.payment_token_decimals)
    yield compared("token: signing domain", market.token_separator, Domains.of(book).token.separator)
    owed = market.escrowed + market.credits
    yield compared(f"{JOBS}: holds what it owes, {owed} at least", market.held >= owed, True)


def _ownership(market: MarketState, terms: MarketTerms) -> Iterator[CheckRow]:
    for name, registry in market.registries.items():
        yield compared(f"{name}: owner, or to be when it accepts", _heir(registry), terms.owner)


def _heir(registry: Registry) -> str:
    return registry.pending_owner or registry.owner


def _settings(market: MarketState, terms: MarketTerms) -> Iterator[CheckRow]:
    yield compared(f"{JOBS}: treasury", market.treasury, terms.treasury)
    yield compared(f"{JOBS}: fee in bps", market.fee_bps, terms.fee_bps)
    yield compared(f"{JOBS}: gas fee", market.gas_fee, terms.gas_fee)
    yield compared(f"{JOBS}: highest gas fee", market.max_gas_fee, terms.max_gas_fee)
    yield compared(f"{JOBS}: gas of a call of the token", market.token_gas, terms.token_gas)
    yield compared(f"{PROVIDERS}: price of a point", market.point_price, terms.point_price)
    yield compared(f"{JOBS}: paused", market.paused, False)
    yield compared(f"{JOBS}: windows in seconds", market.slas, frozenset(terms.slas))
    wanted = {model.model_id: model for model in terms.models}
    for model_id, model in sorted(wanted.items()):
        found, enabled = market.models.get(model_id, (None, False))
        yield compared(
            f"{JOBS}: model {model_id}", "not set" if found is None else _model_text(found), _model_text(model)
        )
        yield compared(f"{JOBS}: model {model_id} enabled", enabled, True)
    others = frozenset(n for n, (_, enabled) in market.models.items() if enabled and n not in wanted)
    yield compared(f"{JOBS}: other models enabled", others, frozenset())
    for name, registry in market.registries.items():
        yield compared(f"{name}: relayers", registry.relayers, frozenset(terms.relayers))


def _model_text(model: ModelTerms) -> str:
    return f"{model.name}, owned by {model.owned_by or 'nobody'}, parameters {model.params_schema or 'unknown'}"


def facts(market: MarketState, book: AddressBook) -> list[CheckRow]:
    """Return one row per fact, with a verdict if only one value is right."""

    def amount(units: int) -> str:
        return f"{units} ({Decimal(units).scaleb(-book.payment_token_decimals):f})"

    rows = soundness(market, book)
    for name, registry in market.registries.items():
        rows.append(fact(f"{name}: owner", registry.owner))
        rows.append(fact(f"{name}: pending owner", registry.pending_owner or "none"))
        rows.append(fact(f"{name}: relayers", readable(registry.relayers)))
    rows += [
        fact(f"{JOBS}: paused", readable(market.paused)),
        fact(f"{JOBS}: fee", f"{market.fee_bps} bps"),
        fact(f"{JOBS}: gas fee", amount(market.gas_fee)),
        fact(f"{JOBS}: highest gas fee", amount(market.max_gas_fee)),
        fact(f"{JOBS}: gas of a call of the token", str(market.token_gas)),
        fact(f"{PROVIDERS}: price of a point of reputation", amount(market.point_price)),
        fact(f"{JOBS}: windows in seconds", readable(market.slas)),
        fact(f"{JOBS}: treasury", market.treasury),
        fact("treasury: holds", amount(market.treasury_holds)),
        fact(f"{JOBS}: escrowed", amount(market.escrowed)),
        fact(f"{JOBS}: credits", amount(market.credits)),
        fact(f"{JOBS}: holds", amount(market.held)),
    ]
    return rows + [fact(f"native funds of {account}", in_ether(wei)) for account, wei in market.native.items()]


def as_text(market: MarketState, rows: Sequence[CheckRow]) -> str:
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
        check_lines(rows, terminal_columns()),
        _section("models", ("id", "", "name", "owned by"), models),
        _section(
            "providers",
            ("id", "operator", "", "models", "jobs/capacity", "requested", "ceiling", "reputation", "grace"),
            providers,
        ),
        _section("escrow allowlist", ("key", "status", "entry"), allowlist),
    ]
    return "\n\n".join(sections)


def as_document(market: MarketState, rows: Sequence[CheckRow]) -> str:
    """Return the status as JSON."""
    document: dict[str, Any] = {
        "block": market.block,
        "facts": check_records(rows),
        "models": [attrs.asdict(model) | {"enabled": enabled} for model, enabled in market.models.values()],
        "providers": [attrs.asdict(one) | {"models": sorted(one.models)} for one in market.listings],
        "allowlist": {key: {"status": status, "entry": entry} for key, (status, entry) in market.allowlist.items()},
    }
    return json.dumps(document, indent=2)


def _section(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return f"{title}: none"
    cells = [[cell or "-" if at else cell for at, cell in enumerate(line)] for line in (header, *lines)]
    return "\n".join((title, *grid(cells, terminal_columns(), alone=2)))
