"""Commands of one wallet's jobs: list, watch and verify."""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import click

from svc.cli.connection import Connection, add_connection_options
from svc.cli.exit_codes import ExitCode
from svc.cli.json_form import to_plain_values
from svc.cli.output import Output
from svc.errors import ApiError, ConnectionFailed

if TYPE_CHECKING:
    from svc.client import Client
    from svc.records import BookRow


@click.command()
@click.argument("job_id", help="The job's id.")
@add_connection_options
async def verify(connection: Connection, job_id: str) -> ExitCode:
    """Show how each fact of a job is verified, if at all.

    With a node of the chain (--rpc-url, SVC_RPC_URL; several must agree), reads the job from the registry's events and
    checks the owner's signature over the payment. Exits with status 3 if the coordinator contradicts the chain.
    Without a node, checks only the id and exits with status 9.
    """
    async with connection.client(wallet=None) as client:
        verified = await client.verify(job_id)
    # Imported late, so that a wrong command line fails faster.
    from svc.cli import tables  # noqa: PLC0415

    connection.output.show_table(tables.verification_table(verified.facts), to_plain_values(attrs.asdict(verified)))
    if verified.checked_on_chain:
        return ExitCode.DONE
    connection.output.warn("not checked against the chain: set SVC_RPC_URL or --rpc-url to a node")
    return ExitCode.UNHEALTHY


@click.command()
@click.option(
    "--state",
    type=click.Choice(("Open", "Claimed", "Settled", "Cancelled")),
    help="Only jobs in this state on the chain.",
)
@click.option("--owner", metavar="ADDRESS", help="Show this owner's jobs instead of yours.")
@click.option("--limit", type=click.IntRange(1), default=20, help="Maximum number of jobs, newest first.")
@click.option("--summary", is_flag=True, help="Show totals instead.")
@click.option("--watch", is_flag=True, help="Keep the list up to date until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, help="Seconds between updates of --watch.")
@add_connection_options
async def jobs(
    connection: Connection, *, state: Any, owner: str | None, limit: int, summary: bool, watch: bool, every: float
) -> None:
    """List jobs: yours, or those of another owner.

    With --watch, a terminal shows the list as it changes; a pipe gets a line for each change of a status. The
    list is public; the content of a job is not.
    """
    if summary and watch:
        raise click.UsageError("use either --summary or --watch, not both")
    output = connection.output
    async with connection.client(wallet=owner is None) as client:
        from svc.cli import tables  # noqa: PLC0415
        from svc.cli.commands.market import read_model_names  # noqa: PLC0415
        from svc.cli.money import format_amount  # noqa: PLC0415

        address = owner or client.address
        model_names = await read_model_names(client)
        if watch:
            await _show_updates(
                output,
                _poll_jobs(client, output, every, owner=address, state=state, limit=limit),
                model_names,
                client.now,
            )
            return
        if not summary:
            listed = await client.jobs.book(owner=address, state=state, order="newest", limit=limit)
            output.show_table(tables.jobs_table(listed, model_names, client.now()), to_plain_values(listed))
            return
        totals, deployment = await client.jobs.summary(address), await client.chain()
    facts: list[tuple[str, str | None]] = [
        ("jobs", str(totals.jobs)),
        ("completed", str(totals.completed)),
        ("escrowed at most", format_amount(totals.escrowed, deployment)),
    ]
    facts += [
        (f"  {tables.model_name_of(each.model_id, model_names)}", f"{each.completed} of {each.jobs} completed")
        for each in totals.by_model
    ]
    output.show_facts(facts, to_plain_values(totals))


async def _poll_jobs(client: "Client", output: Output, every: float, **query: Any) -> "AsyncIterator[list[BookRow]]":
    """Yield the list of jobs at intervals. If the coordinator is unreachable, warn once and retry."""
    unreachable = False
    while True:
        try:
            yield await client.jobs.book(order="newest", **query)
            unreachable = False
        except (ApiError, ConnectionFailed) as failed:
            if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                raise
            if not unreachable:
                output.warn(f"{failed.message}; retrying every {every:g} s")
            unreachable = True
        await anyio.sleep(every)


async def _show_updates(
    output: Output, updates: "AsyncIterator[list[BookRow]]", model_names: dict[int, str], now: Callable[[], float]
) -> None:
    from svc.cli import tables  # noqa: PLC0415

    if output.is_on_terminal:
        with output.live_table() as draw:
            async for rows in updates:
                draw(tables.jobs_table(rows, model_names, now()))
    seen: dict[str, str] = {}
    async for rows in updates:
        for row in reversed(rows):  # oldest first
            status = tables.job_status(row)
            if seen.get(row.job_id) != status:
                seen[row.job_id] = status
                if output.as_json:
                    output.write_json_line(to_plain_values(row) | {"status": status})
                else:
                    output.show_table(tables.jobs_table([row], model_names, now()), None)
        output.flush()
