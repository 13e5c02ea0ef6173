"""Everything about a deployed market, for people and as JSON."""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import attrs

from common.address_book import AddressBook
from coordinatord.market.deployment import JOBS, PROVIDERS
from coordinatord.market.fees import in_ether
from coordinatord.market.reading import Market
from coordinatord.market.table import Row, as_json, columns, table, told
from coordinatord.market.verify import soundness


def facts(market: Market, book: AddressBook) -> list[Row]:
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


def as_text(market: Market, rows: Sequence[Row]) -> str:
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


def as_document(market: Market, rows: Sequence[Row]) -> str:
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
