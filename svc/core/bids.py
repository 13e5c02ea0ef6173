"""Bid of an order: its rates, and the provider that it names.

    rates    provider    bid
    none     none        the ask of the candidate that is ranked first; the order names this candidate
    none     named       the ask of the named provider; rejected if this provider is not live
    one      any         the given rate; the other rate is zero
    both     any         the given rates

An order that names no provider is open. It is sealed to the escrow's key, and any provider may claim it.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from common.refusal import Refused
from common.scalars import read_decimal
from svc.errors import NoProvider
from svc.records import Candidate

OPEN_PROVIDER: Final = 0

Rate = int | str


@attrs.frozen(slots=True)
class Rates:
    """Rates in base units of the payment token per 10^6 units."""

    rate_in: int
    rate_out: int


@attrs.frozen(slots=True)
class Bid:
    """Bid of an order. `designated` is the provider's id, or 0 for an open order. `box_key` may be unknown (None)."""

    rates: Rates
    designated: int
    box_key: str | None = None


def read_rates(rate_in: Rate | None, rate_out: Rate | None) -> Rates | None:
    """Return the rates, or None if both are None, because such an order takes the best ask.

    >>> read_rates("1000000", None)
    Rates(rate_in=1000000, rate_out=0)
    >>> read_rates(None, None)
    """
    if rate_in is None and rate_out is None:
        return None
    return Rates(_read_rate(rate_in, "rate_in"), _read_rate(rate_out, "rate_out"))


def market_bid(candidates: Sequence[Candidate], provider: int | None) -> Bid:
    """Return the bid of an order without rates.

    The bid is the ask of the named provider. Without a named provider, it is the ask of the first candidate with free
    capacity.
    """
    if provider is not None:
        candidates = [candidate for candidate in candidates if candidate.provider_id == provider]
    if not candidates:
        subject = f"provider {provider} is not live" if provider is not None else "no provider is live"
        raise NoProvider(f"{subject} for this model and window")
    if provider is None:
        # `room` is None at older coordinators, which do not report free capacity.
        candidates = [candidate for candidate in candidates if candidate.room != 0]
    if not candidates:
        raise NoProvider(
            "every live provider of this model and window is full: retry later, or set `provider` to wait for a certain"
            " provider"
        )
    first = candidates[0]
    return Bid(Rates(first.rate_in, first.rate_out), first.provider_id, first.box_key)


def _read_rate(value: object, param: str) -> int:
    if value is None:
        return 0
    if type(value) is int and 0 <= value < 2**128:
        return value
    if isinstance(value, str):
        return read_decimal(value, 128, param)
    raise Refused(f"{param} must be a whole number of base units per 10^6 units, at most 2^128 - 1", param)
