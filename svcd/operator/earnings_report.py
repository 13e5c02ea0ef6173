"""Format earnings as a table, as CSV and as records for JSON."""

import csv
import io
from collections import Counter
from typing import Final

import attrs

from common.address_book import AddressBook
from common.text_table import grid_lines, hanging_text
from svcd.operator.earnings import DailyModelEarnings, Earnings

_COLUMNS: Final = ("day", "model", "settled", "earned", "fees", "gas_fees", "refunded", "failed", "reclaimed")


def earnings_records(earnings: Earnings) -> list[dict[str, object]]:
    """Return records with amounts in base units. A record of a day's reputation change has no model."""
    records: list[dict[str, object]] = []
    for (day, model), row in earnings.rows.items():
        reasons = dict(sorted(earnings.failure_reasons.get((day, model), Counter()).items()))
        amounts = dict(zip(_COLUMNS[2:], attrs.astuple(row), strict=True))
        records.append({"day": day, "model": model, **amounts, "reputation": None, "reasons": reasons})
    for day, change in sorted((earnings.reputation_changes or {}).items()):
        empty = dict.fromkeys(_COLUMNS[1:])
        records.append({"day": day, **empty, "reputation": change, "reasons": {}})
    return records


def earnings_csv(earnings: Earnings) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_COLUMNS, "reputation", "reasons"], lineterminator="\n")
    writer.writeheader()
    for record in earnings_records(earnings):
        reasons = record["reasons"]
        why = " ".join(f"{reason}={count}" for reason, count in reasons.items()) if isinstance(reasons, dict) else ""
        writer.writerow(record | {"reasons": why})
    return text.getvalue()


def earnings_table(earnings: Earnings, columns: int | None = None) -> str:
    """Return a table for a terminal that is `columns` wide, followed by remarks."""
    total = DailyModelEarnings()
    lines: list[tuple[str, ...]] = [("day", "model", "settled", "earned", "fees", "refunded", "failed", "reclaimed")]
    for (day, model), row in [*earnings.rows.items(), (("", "in all"), total)]:
        if row is not total:
            total.add(row)
        money = [_format_amount(earnings.address_book, each) for each in (row.earned, row.fees, row.refunded)]
        lines.append((day, model, str(row.settled), *money, str(row.failed), str(row.reclaimed)))
    text = grid_lines(lines, columns, right_aligned=range(2, len(lines[0])), own_line_cells=2)
    gas = _format_amount(earnings.address_book, total.gas_fees)
    text.append(f"amounts in {earnings.address_book.token_domain.name}; fees go to the market, including {gas} for gas")
    for (day, model), reasons in sorted(earnings.failure_reasons.items()):
        why = ", ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items()))
        text.append(f"{day} {model}: not settled for {why}")
    if earnings.reputation_changes is None:
        text.append(
            f"reputation {earnings.current_reputation}; set rpc_url to see its changes by day, and the amounts on the"
            " chain"
        )
    else:
        changes = (
            ", ".join(f"{day} {change:+d}" for day, change in sorted(earnings.reputation_changes.items()))
            or "no change"
        )
        text.append(f"reputation {earnings.current_reputation} ({changes})")
    return "\n".join(hanging_text("", line, columns) if columns and len(line) > columns else line for line in text)


def _format_amount(book: AddressBook, amount: int) -> str:
    """Return the amount in tokens with all decimals."""
    whole, rest = divmod(amount, 10**book.payment_token_decimals)
    return f"{whole}.{rest:0{book.payment_token_decimals}d}".rstrip("0").rstrip(".")
