"""The table of `coordinatord budgets`: whose ops used most gas in the last day."""

from collections.abc import Sequence
from typing import Final

from coordinatord.store.gas_budgets import ALL_NEWCOMERS, TopSpender

_HEAD: Final = ("signer", "kind", "gas, this hour", "gas, 24 hours")


def spender_table(spenders: Sequence[TopSpender]) -> str:
    """One line for each signer and kind of op, the largest first."""
    if not spenders:
        return "no gas was spent in the last 24 hours"
    rows = [_HEAD] + [(_name(s.signer), s.kind, f"{s.last_hour:,}", f"{s.last_day:,}") for s in spenders]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
    )


def _name(signer: bytes) -> str:
    if signer == ALL_NEWCOMERS:
        return "all newcomers"
    return "0x" + signer.hex() if signer else "the coordinator"
