"""Commands that explain why a job is unclaimed, or why an order would be rejected."""

from collections import defaultdict
from typing import Final

import click

from svc.cli import money, tables
from svc.cli.connection import Connection, connected
from svc.cli.exit_codes import Exit
from svc.cli.json_form import wire_form
from svc.cli.output import Output
from svc.core.windows import window_words
from svc.records import Checked, Deployment, Why

_CHANGE_TEMPLATES: Final = {
    "rates": "rates of {rate_in} in and {rate_out} out",
    "window": "a window of {window}",
    "designated": "an order for provider {designated}",
    "funds": "a balance of {balance} base units",
}


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def why(connection: Connection, job_id: str) -> None:
    """Explain why a job is unclaimed, and what would change that.

    Shows each provider that polls or has an ask for the job's model, with its reasons. A signed order cannot be
    changed: cancel the job and order again.
    """
    output = connection.output
    async with connection.client() as client:
        report = await client.jobs.why(job_id)
    if output.as_json:
        output.json(wire_form(report))
        return
    output.text(report.said)
    if report.providers:
        output.table(tables.why(report), None)
    for line in _suggestions(report):
        output.text(line)


def _suggestions(report: Why) -> list[str]:
    lines = []
    for suggestion in report.would_help:
        values = {name: str(value) for name, value in suggestion.value.items()}
        if "sla_secs" in suggestion.value:
            values["window"] = window_words(suggestion.value["sla_secs"])
        template = _CHANGE_TEMPLATES.get(suggestion.change)
        change = template.format_map(defaultdict(lambda: "?", values)) if template is not None else suggestion.change
        provider_count = f"{suggestion.providers} provider{'' if suggestion.providers == 1 else 's'}"
        lines.append(f"would help: {change} ({provider_count} could then accept it)")
    return lines


def show_checked(output: Output, checked: Checked, chain: Deployment) -> Exit:
    """Show the failed checks of an order with their remedies, its price, and the live providers."""
    if output.as_json:
        output.json(wire_form(checked))
        return Exit.DONE if checked.ok else Exit.REFUSED
    for failure in checked.failures:
        output.text(f"{failure.code or failure.param or 'refused'}: {failure.message}")
        output.text(f"  {failure.remedy}")
    facts = [
        ("price", f"{money.format_amount(checked.quote.amount, chain)} at most" if checked.quote is not None else None)
    ]
    output.facts([*facts, ("live now", tables.live(checked.candidates))], None)
    if checked.ok:
        output.say("all checks passed; nothing was posted, and nothing is owed")
        return Exit.DONE
    output.say("nothing was posted, and nothing is owed")
    return Exit.REFUSED
