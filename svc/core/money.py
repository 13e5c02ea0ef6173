"""Amounts of the payment token, and the ceiling that no payment is signed above.

What is given for one order wins, then what the client was told (`max_amount=`, SVC_MAX_AMOUNT), else there is a small
default: one whole token for an order or a line of a batch, ten for a batch in all.
"""

from typing import Final

import attrs

from svc.errors import OverCeiling

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
