"""Amounts and rates for people: exact decimals of the payment token. Scripts get base units."""

from typing import Final

_UNITS: Final = "1M"  # rates are per 10^6 units


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


def rate(per_million: int, decimals: int) -> str:
    """
    >>> rate(150_000, 6)
    '0.15/1M'
    """
    return f"{in_token(per_million, decimals)}/{_UNITS}"
