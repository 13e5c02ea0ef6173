"""Amounts of the payment token, and the ceiling that no payment is signed above.

What is given for one order wins, then what the client was told (`max_amount=`, SVC_MAX_AMOUNT), else there is a small
default: one whole token for an order or a line of a batch, ten for a batch in all.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from common.refusal import Refused
from common.scalars import read_decimal
from svc.errors import NoProvider, OverCeiling
from svc.records import Candidate

DEFAULT_ORDER: Final = 1  # whole tokens
DEFAULT_BATCH: Final = 10
# A default in whole tokens is as large as the decimals say. Where only the coordinator says them they count as six at
# most, the decimals of the usual stable tokens: a lie about them must not make a small ceiling a large one.
_UNVOUCHED_DECIMALS: Final = 6


def in_token(amount: int, decimals: int) -> str:
    """Exact, without trailing zeros.

    >>> in_token(165_000, 6)
    '0.165'
    >>> in_token(2_000_000, 6)
    '2'
    """
    whole, fraction = divmod(amount, 10**decimals)
    digits = f"{fraction:0{decimals}d}".rstrip("0") if decimals else ""
    return f"{whole:,}.{digits}" if digits else f"{whole:,}"


@attrs.frozen(slots=True)
class Token:
    """The payment token as amounts are told in it. `vouched`: somebody else than the coordinator says the decimals."""

    name: str
    decimals: int
    vouched: bool

    def told(self, amount: int) -> str:
        return f"{in_token(amount, self.decimals)} {self.name} ({amount} base units)"


@attrs.frozen(slots=True)
class Ceiling:
    """In base units. `default`: nobody set it. `raised_by` says how it is raised."""

    most: int
    default: bool
    raised_by: str
    token: Token

    def check(self, amount: int, what: str) -> None:
        """Raises OverCeiling. `what` is paid for: `the order`, `line 7`, `the batch`."""
        if amount <= self.most:
            return
        kind = "the default ceiling" if self.default else "the ceiling"
        message = f"{what} comes to {self.token.told(amount)}, above {kind} of {self.token.told(self.most)}"
        raise OverCeiling(f"{message}; {self.raised_by}", amount=amount, default=self.default)


def order_ceiling(token: Token, given: int | None, configured: int | None) -> Ceiling:
    return _ceiling(token, given, configured, DEFAULT_ORDER, _ORDER)


def line_ceiling(token: Token, given: int | None, configured: int | None) -> Ceiling:
    return _ceiling(token, given, configured, DEFAULT_ORDER, _LINE)


def batch_ceiling(token: Token, given: int | None, configured: int | None) -> Ceiling:
    return _ceiling(token, given, configured, DEFAULT_BATCH, _BATCH)


_ORDER: Final = "raise it with --max-amount, SVC_MAX_AMOUNT or max_amount="
_LINE: Final = "raise it with --max-line-amount, SVC_MAX_AMOUNT or max_line_amount="
_BATCH: Final = "raise it with --max-amount, SVC_MAX_BATCH_AMOUNT or max_amount="


def _ceiling(token: Token, given: int | None, configured: int | None, whole_tokens: int, raised_by: str) -> Ceiling:
    most = configured if given is None else given
    if most is not None:
        return Ceiling(most, False, raised_by, token)
    decimals = token.decimals if token.vouched else min(token.decimals, _UNVOUCHED_DECIMALS)
    return Ceiling(whole_tokens * 10**decimals, True, raised_by, token)


# Bid of an order: its rates, and the provider that it names.
#
#     rates    provider    bid
#     none     none        the market: the first ranked candidate's ask, pinned to that provider
#     none     named       that provider's ask; refused when it is not live
#     one      any         that rate; the other side bids zero
#     both     any         as given
#
# An order that is neither pinned nor named is open: any provider may claim it, and it is sealed to the escrow.

OPEN: Final = 0

Rate = int | str


@attrs.frozen(slots=True)
class Rates:
    """Base units of the payment token per 10^6 units."""

    rate_in: int
    rate_out: int


@attrs.frozen(slots=True)
class Bid:
    """`designated` is 0 for an open order; `box_key` is known when a candidate was bid on."""

    rates: Rates
    designated: int
    box_key: str | None = None


def read_rates(rate_in: Rate | None, rate_out: Rate | None) -> Rates | None:
    """None when neither is given: the order takes the market.

    >>> read_rates("1000000", None)
    Rates(rate_in=1000000, rate_out=0)
    >>> read_rates(None, None)
    """
    if rate_in is None and rate_out is None:
        return None
    return Rates(_rate(rate_in, "rate_in"), _rate(rate_out, "rate_out"))


def market_bid(candidates: Sequence[Candidate], provider: int | None) -> Bid:
    """Return the bid of an order without rates: the first candidate with room, or the provider that was named."""
    if provider is not None:
        candidates = [candidate for candidate in candidates if candidate.provider_id == provider]
    if not candidates:
        whom = f"provider {provider} is not live" if provider is not None else "no provider is live"
        raise NoProvider(f"{whom} for this model and window")
    if provider is None:
        candidates = [candidate for candidate in candidates if candidate.room != 0]  # older coordinators report no room
    if not candidates:
        raise NoProvider(
            "each live provider of this model and window is full; try again later, or wait for one with `provider`"
        )
    first = candidates[0]
    return Bid(Rates(first.rate_in, first.rate_out), first.provider_id, first.box_key)


def _rate(value: object, param: str) -> int:
    if value is None:
        return 0
    if type(value) is int and 0 <= value < 2**128:
        return value
    if isinstance(value, str):
        return read_decimal(value, 128, param)
    raise Refused(f"{param} must be a whole number of base units per 10^6 units, at most 2^128 - 1", param)
