"""Command `svc spend`: costs of `svc serve`, from its ledger."""

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
from svc.cli.commands.serve import STATE_OPTION
from svc.cli.drawing import Table
from svc.cli.exit_codes import ExitCode
from svc.cli.output import Output
from svc.core.money import format_token_amount
from svc.serve.ledger import Ledger, SpendEntry
from svc.serve.settings import state_folder

_DAY_S: Final = 86_400
_GROUP_NAME_BY_OPTION: Final[dict[str, Callable[[SpendEntry], str]]] = {
    "day": lambda entry: datetime.fromtimestamp(entry.at, UTC).date().isoformat(),
    "model": lambda entry: entry.name,
    "key": lambda entry: entry.key,
    "kind": lambda entry: entry.kind,
    "provider": lambda entry: str(entry.provider),
}


@attrs.define
class _Total:
    """Sums of one group of jobs. `authorised_amount` is the amount of the running jobs."""

    job_count: int = 0
    paid_amount: int = 0
    free_jobs: int = 0
    running_jobs: int = 0
    authorised_amount: int = 0

    def add(self, entry: SpendEntry) -> None:
        self.job_count += 1
        if entry.cost is None:
            self.running_jobs += 1
            self.authorised_amount += entry.amount
        else:
            self.paid_amount += entry.cost
            self.free_jobs += entry.cost == 0


@click.command()
@STATE_OPTION
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(tuple(_GROUP_NAME_BY_OPTION)),
    default=("day", "model", "key"),
    help="Group by.",
)
@click.option("--days", type=click.IntRange(1, 3660), default=30, help="Number of UTC days, including today.")
@click.option("--csv", "as_csv", is_flag=True, help="Write every job as a line of CSV, with amounts in base units.")
@click.option("--decimals", type=click.IntRange(0, 36), help="Show amounts in whole tokens with this many decimals.")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def spend(  # noqa: PLR0917 - click passes each option as an argument
    state: Path | None, by: tuple[str, ...], days: int, as_csv: bool, decimals: int | None, as_json: bool
) -> ExitCode:
    """Show what svc serve spent, by day, model and key.

    Amounts are base units of the payment token. A running job counts with its authorised amount.

    \b
      svc spend --days 7
      svc spend --by key --json
      svc spend --csv > spent.csv
    """
    output = Output(as_json=as_json, quiet=False)
    try:
        ledger = Ledger.open_read_only(state_folder(state, os.environ))
    except Refused as refusal:
        output.show_error(refusal.message, None, {"message": refusal.message, "code": refusal.code})
        return ExitCode.USAGE
    try:
        now = time.time()
        midnight = now - now % _DAY_S
        entries = anyio.run(ledger.list_jobs_since, midnight - (days - 1) * _DAY_S)
    finally:
        ledger.close()
    if as_csv:
        output.write_text(_spend_csv(entries))
        return ExitCode.DONE
    totals: dict[tuple[str, ...], _Total] = defaultdict(_Total)
    for entry in entries:
        totals[tuple(_GROUP_NAME_BY_OPTION[grouping](entry) for grouping in by)].add(entry)
    rows = sorted(totals.items())
    output.show_table(_spend_table(by, rows, decimals), [_total_json(by, names, total) for names, total in rows])
    return ExitCode.DONE


def _spend_table(by: Sequence[str], rows: list[tuple[tuple[str, ...], _Total]], decimals: int | None) -> Table:
    def format_money(amount: int) -> str:
        return str(amount) if decimals is None else format_token_amount(amount, decimals)

    return Table(
        (*by, "jobs", "free", "running", "spent", "authorised"),
        [
            (
                *names,
                str(total.job_count),
                str(total.free_jobs),
                str(total.running_jobs),
                format_money(total.paid_amount),
                format_money(total.authorised_amount),
            )
            for names, total in rows
        ],
        right_aligned=frozenset({"jobs", "free", "running", "spent", "authorised"}),
    )


def _total_json(by: Sequence[str], names: tuple[str, ...], total: _Total) -> dict[str, Any]:
    known = {"jobs": total.job_count, "cost_nothing": total.free_jobs, "under_way": total.running_jobs}
    return {
        **dict(zip(by, names, strict=True)),
        **known,
        "spent": str(total.paid_amount),
        "authorised": str(total.authorised_amount),
    }


def _spend_csv(entries: Sequence[SpendEntry]) -> str:
    """Return the entries as CSV. A field that a spreadsheet could run as a formula gets a leading quote."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time", "key", "kind", "asked_for", "model", "job_id", "provider", "amount", "cost", "state"))
    for entry in entries:
        at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="seconds")
        names = [_csv_cell(text) for text in (entry.key, entry.kind, entry.name, entry.model)]
        cost = "" if entry.cost is None else entry.cost
        writer.writerow((at, *names, entry.job_id, entry.provider, entry.amount, cost, entry.state))
    return text.getvalue().rstrip("\n")


def _csv_cell(text: str) -> str:
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text
