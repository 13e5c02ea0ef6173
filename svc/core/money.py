"""Amounts of the payment token, and the ceiling above which no payment is signed.

The ceiling is the `max_amount` of the order. Otherwise it is the `max_amount` of the client (or SVC_MAX_AMOUNT), or a
small default: one whole token for an order or a line, ten for a batch.
"""

from typing import Final

import attrs

from svc.errors import OverCeiling

DEFAULT_ORDER_CEILING_TOKENS: Final = 1
DEFAULT_BATCH_CEILING_TOKENS: Final = 10
_ORDER_ADVICE: Final = "raise the ceiling with --max-amount, SVC_MAX_AMOUNT or max_amount="
_LINE_ADVICE: Final = "raise the ceiling with --max-line-amount, SVC_MAX_AMOUNT or max_line_amount="
_BATCH_ADVICE: Final = "raise the ceiling with --max-amount, SVC_MAX_AMOUNT or max_amount="
# Limit on unverified decimals. A coordinator that reports too many could otherwise raise the default ceiling.
_MAX_UNVERIFIED_DECIMALS: Final = 6


def format_token_amount(amount: int, decimals: int) -> str:
    """Format an amount in whole tokens, exactly and without trailing zeros.

    >>> format_token_amount(165_000, 6)
    '0.165'
    >>> format_token_amount(2_000_000, 6)
    '2'
    """
    whole, fraction = divmod(amount, 10**decimals)
    digits = f"{fraction:0{decimals}d}".rstrip("0") if decimals else ""
    return f"{whole:,}.{digits}" if digits else f"{whole:,}"


@attrs.frozen(slots=True)
class Token:
    """Payment token. `decimals_verified` is False if only the coordinator reports the decimals."""

    name: str
    decimals: int
    decimals_verified: bool

    def format(self, amount: int) -> str:
        return f"{format_token_amount(amount, self.decimals)} {self.name} ({amount} base units)"


@attrs.frozen(slots=True)
class Ceiling:
    """Maximum amount in base units. `is_default` is True if the user set none. `advice` says how to raise it."""

    max_amount: int
    is_default: bool
    advice: str
    token: Token

    def check(self, amount: int, subject: str) -> None:
        """Raise OverCeiling if the amount is above the ceiling. `subject` is, for example, `the order`."""
        if amount <= self.max_amount:
            return
        kind = "the default ceiling" if self.is_default else "the ceiling"
        message = (
            f"{subject} costs up to {self.token.format(amount)}, above {kind} of {self.token.format(self.max_amount)}"
        )
        raise OverCeiling(f"{message}; {self.advice}", amount=amount, default=self.is_default)


def order_ceiling(token: Token, max_amount: int | None, configured: int | None) -> Ceiling:
    return _build_ceiling(token, max_amount, configured, DEFAULT_ORDER_CEILING_TOKENS, _ORDER_ADVICE)


def line_ceiling(token: Token, max_amount: int | None, configured: int | None) -> Ceiling:
    return _build_ceiling(token, max_amount, configured, DEFAULT_ORDER_CEILING_TOKENS, _LINE_ADVICE)


def batch_ceiling(token: Token, max_amount: int | None, configured: int | None) -> Ceiling:
    return _build_ceiling(token, max_amount, configured, DEFAULT_BATCH_CEILING_TOKENS, _BATCH_ADVICE)


def _build_ceiling(
    token: Token, max_amount: int | None, configured: int | None, default_tokens: int, advice: str
) -> Ceiling:
    limit = configured if max_amount is None else max_amount
    if limit is not None:
        return Ceiling(limit, False, advice, token)
    decimals = token.decimals if token.decimals_verified else min(token.decimals, _MAX_UNVERIFIED_DECIMALS)
    return Ceiling(default_tokens * 10**decimals, True, advice, token)
