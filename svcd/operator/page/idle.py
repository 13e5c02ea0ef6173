"""Explain on the provider's page why the daemon or a model has no work."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import attrs

from svcd.backends.breaker import FAULTS_TO_OPEN
from svcd.base.end_reasons import ClaimHoldReason
from svcd.config import ModelConfig
from svcd.coordinator.client import PostedAsk
from svcd.stages.health import ClaimHold

_MIN_SILENCE_S: Final = 60.0  # shorter pauses between orders are usual
_HOLD_TITLES: Final[dict[ClaimHoldReason, str]] = {
    "box_key": "box key differs",
    "clock": "clock is wrong",
    "backend": "model server does not answer",
    "model_name": "model server does not know the model",
    "window": "window is not allowed in this market",
    "other_daemon": "another daemon uses this wallet",
}
_ADMIN_REMEDY: Final = "Ask the market's admin to list this provider."


@attrs.frozen(slots=True)
class IdleReason:
    """Reason for having no work, for one model or for all. `blocks` is True if the reason prevents all orders."""

    said: str
    remedy: str = ""
    model: str | None = None
    blocks: bool = True


@attrs.frozen(slots=True)
class PricePosition:
    """Position of one ask among the asks of all providers for the same model and window.

    `above` is the number of cheaper asks of other providers. An ask is cheaper if the sum of rate_in and rate_out is
    lower. Rates are in base units.
    """

    model: str
    sla: int
    rate_in: int
    rate_out: int
    above: int
    competitors: int
    lowest_in: int | None
    lowest_out: int | None


@attrs.frozen(slots=True)
class ModelState:
    """Current state of one model. `seconds_since_orders` counts from the last poll that returned orders, if any."""

    name: str
    offered: bool
    slots: int
    held: int
    free: int
    load: float | None
    discount_percent: int
    circuit_open: bool
    next_probe_s: float
    seconds_since_orders: float | None


@attrs.frozen(slots=True)
class DaemonState:
    """Current state of the daemon. `granted` and `listed` are None while unknown."""

    connected: bool
    problem: str | None
    claim_holds: Sequence[ClaimHold]
    granted: int | None
    listed: bool | None
    uptime_s: float
    models: Sequence[ModelState]
    prices: Sequence[PricePosition]


def price_positions(
    model: ModelConfig, model_id: int, own_id: int, asks: Collection[PostedAsk]
) -> Iterator[PricePosition]:
    """Yield the position of each of the model's asks. A provider has at most one ask for each window."""
    for sla, own in sorted(model.asks.items()):
        others = [ask for ask in asks if (ask.model_id, ask.sla) == (model_id, sla) and ask.provider_id != own_id]
        above = sum(ask.rate_in + ask.rate_out < own.rate_in + own.rate_out for ask in others)
        lowest = min(others, key=lambda ask: ask.rate_in + ask.rate_out, default=None)
        yield PricePosition(
            *(model.name, sla, own.rate_in, own.rate_out, above, len(others)),
            lowest.rate_in if lowest else None,
            lowest.rate_out if lowest else None,
        )


def idle_reasons(state: DaemonState) -> list[IdleReason]:
    """Return the reasons for having no work, blocking ones first. A model that holds jobs needs no reason."""
    reasons = [*_daemon_reasons(state)]
    if not any(reason.model is None and reason.blocks for reason in reasons):
        for model in state.models:
            reasons += _model_reasons(model, state)
    return sorted(reasons, key=lambda reason: not reason.blocks)


def _daemon_reasons(state: DaemonState) -> Iterator[IdleReason]:
    if not state.connected:
        yield IdleReason(
            "the coordinator has not answered since the start",
            "Check the coordinator's address and the network, and read svcd's log.",
        )
        return
    for hold in state.claim_holds:
        yield IdleReason(_HOLD_TITLES[hold.reason], hold.detail, hold.model)
    if state.problem is not None and not state.claim_holds:
        yield IdleReason(state.problem)
    if state.listed is False:
        yield IdleReason("this provider is not listed", _ADMIN_REMEDY)
    if state.granted == 0:
        yield IdleReason("the market grants this provider no slots", "Ask the market's admin for slots.")


def _model_reasons(model: ModelState, state: DaemonState) -> Iterator[IdleReason]:
    if not model.offered:
        yield IdleReason(
            f"{model.name} is not in the market's catalogue",
            "Correct the model's name, or ask the market's admin to add the model.",
            model.name,
        )
    elif model.circuit_open:
        yield IdleReason(
            f"the backend of {model.name} failed {FAULTS_TO_OPEN} jobs in a row",
            f"svcd probes the backend again within {format_duration(model.next_probe_s)}. Read the model server's log.",
            model.name,
        )
    elif model.held:
        return
    elif model.load is not None and int((1 - model.load) * model.slots + 1e-9) == 0:
        yield IdleReason(
            f"the backend of {model.name} is fully loaded by other work",
            "svcd claims orders again when the load falls.",
            model.name,
        )
    elif any(hold.model == model.name and hold.sla_secs is None for hold in state.claim_holds):
        return
    else:
        yield from _market_reasons(model, state)


def _market_reasons(model: ModelState, state: DaemonState) -> Iterator[IdleReason]:
    silence = state.uptime_s if model.seconds_since_orders is None else model.seconds_since_orders
    if silence < _MIN_SILENCE_S:
        return
    for price in state.prices:
        if price.model == model.name and price.above:
            rivals = f"{price.above} of {price.competitors} competitor{'s' if price.competitors != 1 else ''}"
            yield IdleReason(
                f"priced above {rivals} on {model.name} in the window of {format_duration(price.sla)}",
                "Clients choose the lowest price first. Lower rate_in or rate_out, or set discount_percent.",
                model.name,
                blocks=False,
            )
    since = ", since svcd started" if model.seconds_since_orders is None else ""
    yield IdleReason(f"no orders for {format_duration(silence)} on {model.name}{since}", "", model.name, blocks=False)


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit, rounded down.

    >>> format_duration(725), format_duration(3600), format_duration(59.9)
    ('12 minutes', '1 hour', '59 seconds')
    """
    for name, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count != 1 else ''}"
    count = int(seconds)
    return f"{count} second{'s' if count != 1 else ''}"
