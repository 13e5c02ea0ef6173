"""Commands about one wallet's jobs: listed, watched, and who vouches for one."""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import click

from svc.cli.connection import Connection, connected
from svc.cli.exit_codes import Exit
from svc.cli.json_form import wire_form
from svc.cli.output import Output
from svc.errors import ApiError, ConnectionFailed

if TYPE_CHECKING:
    from svc.client import Client
    from svc.records import BookRow


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def verify(connection: Connection, job_id: str) -> Exit:
    """Show who vouches for each fact of a job: a signature, the chain, or the coordinator's word alone.

    With a node of the chain (--rpc-url, SVC_RPC_URL; several must agree) the job is read from the registry's events,
    and the owner's signature over the payment is checked here. Where the coordinator says otherwise the command ends
    with 3. Without a node nothing but the id is checked, and the command ends with 9.
    """
    async with connection.client(wallet=None) as client:
        verified = await client.verify(job_id)
    # Tables are imported after the client is made: a command line that lacks an option fails in a third of the time.
    from svc.cli import tables  # noqa: PLC0415

    connection.output.table(tables.vouched(verified.facts), wire_form(attrs.asdict(verified)))
    if verified.checked_on_chain:
        return Exit.DONE
    connection.output.warn("no node was asked: set SVC_RPC_URL or --rpc-url to hold this against the chain")
    return Exit.UNHEALTHY


@click.command()
@click.option(
    "--state", type=click.Choice(("Open", "Claimed", "Settled", "Cancelled")), help="In this state on the chain alone."
)
@click.option("--owner", metavar="ADDRESS", help="Of this owner instead of your own.")
@click.option("--limit", type=click.IntRange(1), default=20, help="So many at most, the newest first.")
@click.option("--summary", is_flag=True, help="Totals instead.")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, help="Seconds between looks of --watch.")
@connected
async def jobs(
    connection: Connection, *, state: Any, owner: str | None, limit: int, summary: bool, watch: bool, every: float
) -> None:
    """List jobs: yours, or those of another owner.

    With --watch a terminal shows the list as it changes; a pipe gets a line for each job whose status changed. The book
    is public; what is in a job is not.
    """
    if summary and watch:
        raise click.UsageError("--summary and --watch are two ways to look: choose one")
    output = connection.output
    async with connection.client(wallet=owner is None) as client:
        from svc.cli import tables  # noqa: PLC0415
        from svc.cli.commands.market import names_of  # noqa: PLC0415
        from svc.cli.money import told  # noqa: PLC0415

        whose = owner or client.address
        names = await names_of(client)
        if watch:
            await _watch(
                output, _looks(client, output, every, owner=whose, state=state, limit=limit), names, client.now
            )
            return
        if not summary:
            listed = await client.jobs.book(owner=whose, state=state, order="newest", limit=limit)
            output.table(tables.jobs(listed, names, client.now()), wire_form(listed))
            return
        totals, chain = await client.jobs.summary(whose), await client.chain()
    said: list[tuple[str, str | None]] = [
        ("jobs", str(totals.jobs)),
        ("completed", str(totals.completed)),
        ("escrowed at most", told(totals.escrowed, chain)),
    ]
    said += [
        (f"  {tables.name_of(each.model_id, names)}", f"{each.completed} of {each.jobs} completed")
        for each in totals.by_model
    ]
    output.facts(said, wire_form(totals))


async def _looks(client: "Client", output: Output, every: float, **query: Any) -> "AsyncIterator[list[BookRow]]":
    """The list again and again. A coordinator that is away for a while is waited for, and that is said once."""
    away = False
    while True:
        try:
            yield await client.jobs.book(order="newest", **query)
            away = False
        except (ApiError, ConnectionFailed) as failed:
            if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                raise
            if not away:
                output.warn(f"{failed.message}; looking again every {every:g} s")
            away = True
        await anyio.sleep(every)


async def _watch(
    output: Output, looks: "AsyncIterator[list[BookRow]]", names: dict[int, str], now: Callable[[], float]
) -> None:
    from svc.cli import tables  # noqa: PLC0415

    if output.to_terminal:
        with output.live() as draw:
            async for rows in looks:
                draw(tables.jobs(rows, names, now()))
    seen: dict[str, str] = {}
    async for rows in looks:
        for row in reversed(rows):  # the oldest first, as they would have been told
            status = tables.status_of(row)
            if seen.get(row.job_id) != status:
                seen[row.job_id] = status
                if output.as_json:
                    output.json_line(wire_form(row) | {"status": status})
                else:
                    output.table(tables.jobs([row], names, now()), None)
        output.flush()
