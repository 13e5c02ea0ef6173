"""Commands that explain why a job is unclaimed, or why an order would be rejected."""

from collections import defaultdict
from typing import Final

import click

from svc.cli import money, tables
from svc.cli.connection import Connection, add_connection_options
from svc.cli.exit_codes import ExitCode
from svc.cli.json_form import to_plain_values
from svc.cli.output import Output
from svc.core.windows import format_window
from svc.records import Checked, Deployment, Why

_CHANGE_TEMPLATES: Final = {
    "rates": "rates of {rate_in} in and {rate_out} out",
    "window": "a window of {window}",
    "designated": "an order for provider {designated}",
    "funds": "a balance of {balance} base units",
}


@click.command()
@click.argument("job_id", help="The job's id.")
@add_connection_options
async def why(connection: Connection, job_id: str) -> None:
    """Explain why a job is unclaimed, and what would change that.

    Shows each provider that polls or has an ask for the job's model, with its reasons. A signed order cannot be
    changed. To change the terms, cancel the job and order again.
    """
    output = connection.output
    async with connection.client() as client:
        report = await client.jobs.why(job_id)
    if output.as_json:
        output.write_json(to_plain_values(report))
        return
    output.write_text(report.said)
    if report.providers:
        output.show_table(tables.why_table(report), None)
    for line in _suggestion_lines(report):
        output.write_text(line)


def _suggestion_lines(report: Why) -> list[str]:
    lines = []
    for suggestion in report.would_help:
        values = {name: str(value) for name, value in suggestion.value.items()}
        if "sla_secs" in suggestion.value:
            values["window"] = format_window(suggestion.value["sla_secs"])
        template = _CHANGE_TEMPLATES.get(suggestion.change)
        change = template.format_map(defaultdict(lambda: "?", values)) if template is not None else suggestion.change
        provider_count = f"{suggestion.providers} provider{'' if suggestion.providers == 1 else 's'}"
        lines.append(f"would help: {change} ({provider_count} could then accept the job)")
    return lines


def show_check_result(output: Output, checked: Checked, deployment: Deployment) -> ExitCode:
    """Show the failed checks of an order with their remedies, its price, and the live providers."""
    if output.as_json:
        output.write_json(to_plain_values(checked))
        return ExitCode.DONE if checked.ok else ExitCode.REFUSED
    for failure in checked.failures:
        output.write_text(f"{failure.code or failure.param or 'refused'}: {failure.message}")
        output.write_text(f"  {failure.remedy}")
    facts = [
        (
            "price",
            f"{money.format_amount(checked.quote.amount, deployment)} at most" if checked.quote is not None else None,
        )
    ]
    output.show_facts([*facts, ("live now", tables.describe_live_providers(checked.candidates))], None)
    if checked.ok:
        output.write_note("all checks passed; nothing was posted, and nothing is owed")
        return ExitCode.DONE
    output.write_note("nothing was posted, and nothing is owed")
    return ExitCode.REFUSED
