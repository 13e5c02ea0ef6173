"""Amounts of the payment token, and the ceiling above which no payment is signed.

The ceiling is the one given for the order, or else the client's (`max_amount=`, SVC_MAX_AMOUNT), or else a small
default: one whole token for an order or a line, ten for a batch.
"""

from typing import Final

import attrs

from svc.errors import OverCeiling

DEFAULT_ORDER_TOKENS: Final = 1
DEFAULT_BATCH_TOKENS: Final = 10
_ORDER_ADVICE: Final = "raise it with --max-amount, SVC_MAX_AMOUNT or max_amount="
_LINE_ADVICE: Final = "raise it with --max-line-amount, SVC_MAX_AMOUNT or max_line_amount="
_BATCH_ADVICE: Final = "raise it with --max-amount, SVC_MAX_AMOUNT or max_amount="
# Decimals that only the coordinator reports count as at most six, so that a false report cannot raise the ceiling.
_MAX_UNVERIFIED_DECIMALS: Final = 6


def format_token(amount: int, decimals: int) -> str:
    """Format an amount in whole tokens, exactly and without trailing zeros.

    >>> format_token(165_000, 6)
    '0.165'
    >>> format_token(2_000_000, 6)
    '2'
    """
    whole, fraction = divmod(amount, 10**decimals)
    digits = f"{fraction:0{decimals}d}".rstrip("0") if decimals else ""
    return f"{whole:,}.{digits}" if digits else f"{whole:,}"


@attrs.frozen(slots=True)
class Token:
    """Payment token. `vouched` is False if only the coordinator reports the decimals."""

    name: str
    decimals: int
    vouched: bool

    def format(self, amount: int) -> str:
        return f"{format_token(amount, self.decimals)} {self.name} ({amount} base units)"


@attrs.frozen(slots=True)
class Ceiling:
    """Maximum amount in base units. `default`: no ceiling was set. `advice` says how to raise it."""

    max_amount: int
    default: bool
    advice: str
    token: Token

    def check(self, amount: int, subject: str) -> None:
        """Raises OverCeiling. `subject` is `the order`, `line 7` or `the batch`."""
        if amount <= self.max_amount:
            return
        kind = "the default ceiling" if self.default else "the ceiling"
        message = (
            f"{subject} costs up to {self.token.format(amount)}, above {kind} of {self.token.format(self.max_amount)}"
        )
        raise OverCeiling(f"{message}; {self.advice}", amount=amount, default=self.default)


def order_ceiling(token: Token, given: int | None, configured: int | None) -> Ceiling:
    return _ceiling(token, given, configured, DEFAULT_ORDER_TOKENS, _ORDER_ADVICE)


def line_ceiling(token: Token, given: int | None, configured: int | None) -> Ceiling:
    return _ceiling(token, given, configured, DEFAULT_ORDER_TOKENS, _LINE_ADVICE)


def batch_ceiling(token: Token, given: int | None, configured: int | None) -> Ceiling:
    return _ceiling(token, given, configured, DEFAULT_BATCH_TOKENS, _BATCH_ADVICE)


def _ceiling(token: Token, given: int | None, configured: int | None, whole_tokens: int, advice: str) -> Ceiling:
    max_amount = configured if given is None else given
    if max_amount is not None:
        return Ceiling(max_amount, False, advice, token)
    decimals = token.decimals if token.vouched else min(token.decimals, _MAX_UNVERIFIED_DECIMALS)
    return Ceiling(whole_tokens * 10**decimals, True, advice, token)
