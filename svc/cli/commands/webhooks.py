"""Command `svc webhooks`: add, list, test and remove endpoints for events of this wallet's jobs."""

from pathlib import Path
from typing import Final

import click

from common.api.webhooks import SELECTABLE_EVENTS
from svc.cli import tables
from svc.cli.connection import Connection, add_connection_options
from svc.cli.drawing import Table
from svc.cli.json_form import to_plain_values
from svc.webhooks import ListedWebhook

_WEBHOOK_ARGUMENT: Final = click.argument("webhook_id", help="The endpoint's id.")


@click.group()
def webhooks() -> None:
    """Receive events of your jobs and batches at your URL.

    \b
      svc webhooks add https://hooks.example.org/market job.settled batch.completed
      svc webhooks test whk_…
      svc webhooks list
    """


@webhooks.command()
@click.argument("url", help="Address to post to: https, port 443, a public host.")
@click.argument("events", nargs=-1, type=click.Choice(SELECTABLE_EVENTS), help="Events to post (default: all).")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with your own signing secret (whsec_…).",
)
@add_connection_options
async def add(connection: Connection, *, url: str, events: tuple[str, ...], secret_file: Path | None) -> None:
    """Add an endpoint, and show its signing secret. The secret is shown only once."""
    secret = _read_secret(secret_file) if secret_file is not None else None
    async with connection.client(wallet=True) as client:
        added = await client.webhooks.add(url, events, secret=secret)
    facts = [
        ("webhook", added.id),
        ("url", added.url),
        ("events", _format_events(added.events)),
        ("secret", added.secret),
    ]
    connection.output.show_facts(facts, to_plain_values(added))
    connection.output.write_note(
        f"verify messages with this secret; send a test message with svc webhooks test {added.id}"
    )


@webhooks.command(name="list")
@add_connection_options
async def list_(connection: Connection) -> None:
    """List your endpoints and the state of their deliveries."""
    async with connection.client(wallet=True) as client:
        found = await client.webhooks.list()
    columns = ("id", "status", "answer", "delivered", "waiting", "dropped", "last attempt", "url", "events")
    right = frozenset(("answer", "delivered", "waiting", "dropped"))
    rows = [_webhook_row(each) for each in found]
    connection.output.show_table(Table(columns, rows, right, frozenset(("id", "url"))), to_plain_values(found))


@webhooks.command()
@_WEBHOOK_ARGUMENT
@add_connection_options
async def remove(connection: Connection, *, webhook_id: str) -> None:
    """Remove an endpoint and its waiting messages."""
    async with connection.client(wallet=True) as client:
        await client.webhooks.remove(webhook_id)
    connection.output.write_note(f"{webhook_id} removed")


@webhooks.command()
@_WEBHOOK_ARGUMENT
@add_connection_options
async def test(connection: Connection, *, webhook_id: str) -> None:
    """Send a message of type webhook.test, and write its id."""
    async with connection.client(wallet=True) as client:
        connection.output.write_text(await client.webhooks.test(webhook_id))
    connection.output.write_note("message queued; see its delivery with svc webhooks list")


def _read_secret(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _webhook_row(webhook: ListedWebhook) -> tuple[str | None, ...]:
    status = webhook.status if webhook.disabled_because is None else f"disabled: {webhook.disabled_because}"
    answer = None if webhook.last_status is None else str(webhook.last_status)
    counts = (str(webhook.delivered), str(webhook.waiting), str(webhook.dropped))
    at = tables.format_time(webhook.last_attempt_at)
    return webhook.id, status, answer, *counts, at, webhook.url, _format_events(webhook.events)


def _format_events(events: list[str]) -> str:
    return " ".join(events) or "all"
