"""Command that shows what `svc serve` spent, from its ledger."""

import csv
import io
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import click

from common.refusal import Refused
from svc.cli.commands.serve import STATE
from svc.cli.drawing import Table
from svc.cli.exit_codes import Exit
from svc.cli.output import Output
from svc.core.money import in_token
from svc.profiles import with_profile
from svc.serve.ledger import Ledger, Spent
from svc.serve.settings import state_folder

_BY: Final[dict[str, Callable[[Spent], str]]] = {
    "day": lambda spent: datetime.fromtimestamp(spent.at, UTC).date().isoformat(),
    "model": lambda spent: spent.name,
    "key": lambda spent: spent.key,
    "kind": lambda spent: spent.kind,
    "provider": lambda spent: str(spent.provider),
}


@attrs.define
class _Sum:
    jobs: int = 0
    paid: int = 0
    unpaid: int = 0
    under_way: int = 0
    authorised: int = 0

    def add(self, spent: Spent) -> None:
        self.jobs += 1
        if spent.cost is None:
            self.under_way += 1
            self.authorised += spent.amount
        else:
            self.paid += spent.cost
            self.unpaid += spent.cost == 0


@click.command()
@STATE
@click.option("--by", multiple=True, type=click.Choice(tuple(_BY)), default=("day", "model", "key"), help="Add up by.")
@click.option("--days", type=click.IntRange(1, 3660), default=30, help="Of so many days, today included.")
@click.option("--csv", "as_csv", is_flag=True, help="Every job as a line of CSV, with amounts in base units.")
@click.option("--decimals", type=click.IntRange(0, 36), help="Show amounts in whole tokens of so many decimals.")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def spend(  # noqa: PLR0917 - options come as arguments
    state: Path | None, by: tuple[str, ...], days: int, as_csv: bool, decimals: int | None, as_json: bool
) -> Exit:
    """Show what svc serve spent, by day, model and key, from its ledger.

    Amounts are base units of the payment token. A job under way counts with what is authorised for it.

    \b
      svc spend --days 7
      svc spend --by key --json
      svc spend --csv > spent.csv
    """
    output = Output(as_json=as_json, quiet=False)
    try:
        ledger = Ledger.reading(state_folder(state, with_profile(os.environ)))
    except Refused as refusal:
        output.fail(refusal.message, None, {"message": refusal.message, "code": refusal.code})
        return Exit.USAGE
    try:
        found = anyio.run(ledger.since, time.time() - days * 86_400)
    finally:
        ledger.close()
    if as_csv:
        output.text(_csv(found))
        return Exit.DONE
    sums: dict[tuple[str, ...], _Sum] = defaultdict(_Sum)
    for spent in found:
        sums[tuple(_BY[each](spent) for each in by)].add(spent)
    rows = sorted(sums.items())
    output.table(_table(by, rows, decimals), [_plain(by, names, each) for names, each in rows])
    return Exit.DONE


def _table(by: Sequence[str], rows: list[tuple[tuple[str, ...], _Sum]], decimals: int | None) -> Table:
    def money(amount: int) -> str:
        return str(amount) if decimals is None else in_token(amount, decimals)

    return Table(
        (*by, "jobs", "cost nothing", "under way", "spent", "authorised"),
        [
            (*names, str(each.jobs), str(each.unpaid), str(each.under_way), money(each.paid), money(each.authorised))
            for names, each in rows
        ],
        right=frozenset({"jobs", "cost nothing", "under way", "spent", "authorised"}),
    )


def _plain(by: Sequence[str], names: tuple[str, ...], each: _Sum) -> dict[str, Any]:
    known = {"jobs": each.jobs, "cost_nothing": each.unpaid, "under_way": each.under_way}
    return {**dict(zip(by, names, strict=True)), **known, "spent": str(each.paid), "authorised": str(each.authorised)}


def _csv(found: Sequence[Spent]) -> str:
    """The fields that could be read as a formula begin with a quote, as spreadsheets have it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time", "key", "kind", "asked_for", "model", "job_id", "provider", "amount", "cost", "state"))
    for spent in found:
        at = datetime.fromtimestamp(spent.at, UTC).isoformat(timespec="seconds")
        names = [_cell(each) for each in (spent.key, spent.kind, spent.name, spent.model)]
        cost = "" if spent.cost is None else spent.cost
        writer.writerow((at, *names, spent.job_id, spent.provider, spent.amount, cost, spent.state))
    return text.getvalue().rstrip("\n")


def _cell(text: str) -> str:
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text
