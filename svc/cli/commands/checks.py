"""Explanations: why a job is unclaimed, provider by provider, and all that is wrong with an order."""

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

_CHANGES: Final = {
    "rates": "rates of {rate_in} in and {rate_out} out",
    "window": "a window of {window}",
    "designated": "the order given to provider {designated}",
    "funds": "a balance of {balance} base units",
}


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def why(connection: Connection, job_id: str) -> None:
    """Say why nobody has claimed a job, and what would change that.

    Each provider that polls or asks for the job's model is shown, with the reasons why it will not take the job. A
    signed order cannot be changed: cancel the job and order again.
    """
    output = connection.output
    async with connection.client() as client:
        told = await client.jobs.why(job_id)
    if output.as_json:
        output.json(wire_form(told))
        return
    output.text(told.said)
    if told.providers:
        output.table(tables.why(told), None)
    for line in _helps(told):
        output.text(line)


def _helps(told: Why) -> list[str]:
    lines = []
    for help_ in told.would_help:
        values = {name: str(value) for name, value in help_.value.items()}
        if "sla_secs" in help_.value:
            values["window"] = window_words(help_.value["sla_secs"])
        form = _CHANGES.get(help_.change)
        change = form.format_map(defaultdict(lambda: "?", values)) if form is not None else help_.change
        takers = f"{help_.providers} provider{'' if help_.providers == 1 else 's'}"
        lines.append(f"would help: {change} ({takers} could take it then)")
    return lines


def show_checked(output: Output, checked: Checked, chain: Deployment) -> Exit:
    """All checks that an order fails, each with its remedy; its price and who would take it where none does."""
    if output.as_json:
        output.json(wire_form(checked))
        return Exit.DONE if checked.ok else Exit.REFUSED
    for failure in checked.failures:
        output.text(f"{failure.code or failure.param or 'refused'}: {failure.message}")
        output.text(f"  {failure.remedy}")
    facts = [("price", f"{money.told(checked.quote.amount, chain)} at most" if checked.quote is not None else None)]
    output.facts([*facts, ("live now", tables.live(checked.candidates))], None)
    if checked.ok:
        output.say("no check fails; nothing was posted, and nothing is owed")
        return Exit.DONE
    output.say("nothing was posted, and nothing is owed")
    return Exit.REFUSED
