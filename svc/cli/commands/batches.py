"""Many jobs from one file."""

import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import attrs
import click

from svc.batches.offers import LineOffer
from svc.batches.preparation import PreparedBatch
from svc.batches.results import BatchResult
from svc.cli import tables
from svc.cli.ceiling import within_ceiling
from svc.cli.commands.market import names_of
from svc.cli.connection import Connection, connected
from svc.cli.destinations import written
from svc.cli.exit_codes import Exit
from svc.cli.failures import hint_of
from svc.cli.inputs import read_bytes
from svc.cli.json_form import wire_form
from svc.cli.money import in_json
from svc.cli.output import Gauge, NextStep, Output
from svc.client import Client
from svc.core.batch_lines import read_lines
from svc.core.bids import read_rates
from svc.errors import PlanShort
from svc.records import Batch

_FILE = click.argument("file", help="A JSONL file; - reads standard input.")
_OUT = click.Path(path_type=Path, dir_okay=False)
_BATCH = click.argument("batch_id", help="The batch's id.")
_WINDOW = click.option(
    "--window", "-w", type=click.Choice(("1h", "async", "24h", "batch")), default="24h", help="How long it may take."
)


@click.group()
def batch() -> None:
    """Many jobs from one JSONL file, followed as one batch.

    \b
    Each line is an object:
      {"custom_id": "page 7", "body": {"model": "demo/text-small", "input": "…", "max_output_tokens": 100}}
    body.rate_in, body.rate_out and body.units_out set the order's terms; the rest of body is the model's input.
    Lines without rates go to whom the network's plan names, or with --market, --rate-in or --rate-out are offered to
    whoever claims them; custom_id travels sealed.

    \b
      svc batch run pages.jsonl --window 1h > answers.jsonl
      svc batch plan pages.jsonl --window 1h
      id=$(svc batch create pages.jsonl --window 1h)
      svc batch wait "$id" && svc batch results "$id" --lines pages.jsonl > answers.jsonl
    """


def _offers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of what is offered for lines without rates; `command` gets them as `offer`."""

    @click.option("--rate-in", type=click.IntRange(0), help="For lines without rates: base units per 10^6 of input.")
    @click.option("--rate-out", type=click.IntRange(0), help="For lines without rates: base units per 10^6 of output.")
    @click.option("--market", is_flag=True, help="For lines without rates: the lowest price that is asked at present.")
    @functools.wraps(command)
    def with_offer(*, rate_in: int | None, rate_out: int | None, market: bool, **given: Any) -> Any:
        rates = read_rates(rate_in, rate_out)
        if market and rates is not None:
            raise click.UsageError("--market and rates are two ways to make an offer: choose one")
        return command(offer=LineOffer(rates) if market or rates is not None else None, **given)

    return with_offer


def _terms(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the file and the terms of a batch that is made; `command` gets them as `order`."""

    @_FILE
    @_WINDOW
    @_offers
    @click.option(
        "--provider",
        "providers",
        type=click.IntRange(1, 2**32 - 1),
        multiple=True,
        help="Lines with rates go to these in turn; without any, they are open to all and sealed to the escrow.",
    )
    @click.option("--metadata", metavar="NAME=VALUE", multiple=True, help="Kept with the batch, in the clear.")
    @click.option(
        "--max-amount",
        type=click.IntRange(1),
        help="Refuse to pay more, in base units, for all lines; ten tokens unless set.  [env: SVC_MAX_BATCH_AMOUNT]",
    )
    @click.option(
        "--max-line-amount",
        type=click.IntRange(1),
        help="Refuse to pay more, in base units, for any line; one token unless set.  [env: SVC_MAX_AMOUNT]",
    )
    @functools.wraps(command)
    def with_terms(*, file: str, metadata: tuple[str, ...], **given: Any) -> Any:
        pairs = _pairs(metadata)
        terms = {name: given.pop(name) for name in ("window", "offer", "providers", "max_line_amount")}
        return command(order=_BatchOrder(_lines(file), pairs, given.pop("max_amount"), terms), **given)

    return with_terms


@attrs.frozen
class _BatchOrder:
    """`terms` are those of the client's method that prepares a batch."""

    lines: list[bytes]
    metadata: dict[str, str]
    max_amount: int | None
    terms: dict[str, Any]


@batch.command()
@_FILE
@_WINDOW
@_offers
@connected
async def plan(connection: Connection, file: str, window: str, offer: LineOffer | None) -> Exit:
    """Say who would take the lines and at what price.

    Those that carry no rates are asked for; nothing is reserved. Ends with 4 when the network cannot take all of them
    in the window now.
    """
    lines = _lines(file)
    async with connection.client(wallet=True) as client:
        names = await names_of(client)
        planned = await client.batches.plan(lines, window=window, offer=offer)
    connection.output.table(tables.plan(planned, names), wire_form(planned))
    left = sum(each.lines - sum(share.lines for share in each.allocation) for each in planned)
    if left:
        connection.output.warn(f"{left} of the lines find no provider in this window now")
        connection.output.say(hint_of(PlanShort("", 0, 0)) or "")
        return Exit.TRY_AGAIN
    return Exit.DONE


@batch.command()
@_terms
@connected
async def create(connection: Connection, order: _BatchOrder) -> None:
    """Start a batch and write its id.

    Every line is planned, sealed, signed and paid for. The file is refused as a whole when a line is wrong, naming the
    line, before anything is sent. With --market or rates, lines that carry none wait for whoever claims them at these
    rates, instead of being refused where the network has no room for all of them now.

    A line for a provider is sealed to it alone. An open line (rates and no --provider) is sealed to the coordinator's
    escrow: whoever runs the coordinator holds its key and can open it, as can the provider that claims the job.
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        with output.gauge() as gauge:
            prepared, made = await _created(connection, client, order, gauge)
    output.next = None
    if output.as_json:
        output.json(wire_form(made) | {"amount": str(prepared.amount), "job_ids": list(prepared.job_ids)})
    else:
        output.text(made.id)


@batch.command("run")
@_terms
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@click.option("--every", type=click.FloatRange(0.1), default=5.0, help="Seconds between looks.")
@click.option("--out", type=_OUT, help="Write the results to a file.")
@connected
async def run_(
    connection: Connection, *, order: _BatchOrder, patience: float | None, every: float, out: Path | None
) -> Exit:
    """Start a batch, wait for it, and write a JSON line for each of its lines.

    As svc batch create, wait and results in one; how far it is stands on standard error. Ends with 5 when some lines
    have no result.

    \b
      svc batch run pages.jsonl --window 1h > answers.jsonl
    """
    output = connection.output
    output.next = _NOTHING_SENT
    async with connection.client(wallet=True) as client:
        client.require_readable()
        with ExitStack() as opened, output.gauge(among_results=out is None) as gauge:
            write = output.json_line if out is None else _writer(opened.enter_context(written(out)))
            prepared, made = await _created(connection, client, order, gauge)
            output.say(f"batch {made.id}")
            gauge.stage()
            ended = await client.batches.wait(
                made.id, timeout=patience, every=every, progress=lambda seen: _show(gauge, seen, prepared.lines)
            )
            again = connection.again("batch", "results", made.id)
            output.next = NextStep(f"it is {ended.status}; its results can be read again", (again,))
            numbers = dict(zip(prepared.job_ids, range(1, prepared.lines + 1), strict=True))
            named = {numbers[job_id]: custom_id for job_id, custom_id in prepared.custom_ids.items()}
            ends = await _results(client, ended, named, write, gauge)
    return _told(output, ends)


_NOTHING_SENT: Final = NextStep("nothing was posted, and nothing is owed")


async def _created(
    connection: Connection, client: Client, order: _BatchOrder, gauge: Gauge
) -> tuple[PreparedBatch, Batch]:
    """A batch that was made; how to go on with it is told if the command ends early."""
    output = connection.output
    output.next = _NOTHING_SENT

    async def prepare(most: int | None) -> PreparedBatch:
        gauge.stage()
        return await client.batches.prepare(
            order.lines,
            **order.terms,
            max_amount=most,
            progress=lambda done: gauge.show("sealing and signing", done, len(order.lines)),
        )

    prepared = await within_ceiling(output, gauge, order.max_amount, prepare)
    chain = await client.chain()  # before it is made: nothing may keep its id from being told
    gauge.stage()
    gauge.show("uploading")
    output.next = NextStep("it may have been made; look for it", (connection.again("batch", "list"),))
    made = await client.batches.create(prepared, metadata=order.metadata)
    commands = (connection.again("batch", "wait", made.id), connection.again("batch", "results", made.id))
    output.next = NextStep("the batch goes on without this command, and its results are kept for you", commands)
    for name in prepared.unlisted:
        output.warn(f"the parameter {name!r} is not listed by the model; it was sent as it is")
    most = tables.token(prepared.amount, chain.decimals, chain.token_domain.name)
    output.say(f"{prepared.lines} lines, {most} at most")
    return prepared, made


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 100), default=20, help="So many at most, the newest first.")
@click.option("--after", metavar="BATCH", help="Those older than this one.")
@connected
async def list_(connection: Connection, limit: int, after: str | None) -> None:
    """List your batches."""
    async with connection.client(wallet=True) as client:
        page = await client.batches.list(limit=limit, after=after)
    connection.output.table(tables.batches(page.data), wire_form(page))


@batch.command()
@_BATCH
@connected
async def status(connection: Connection, batch_id: str) -> None:
    """Show one of your batches."""
    async with connection.client(wallet=True) as client:
        seen = await client.batches.get(batch_id)
    connection.output.facts(_facts(seen), wire_form(seen))


@batch.command()
@_BATCH
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@click.option("--every", type=click.FloatRange(0.1), default=60.0, help="Seconds between looks.")
@connected
async def wait(connection: Connection, batch_id: str, patience: float | None, every: float) -> Exit:
    """Wait until a batch has ended.

    The command ends with 0 only if the batch was completed; lines may have failed all the same: svc batch results tells
    them. Without --timeout it waits for the rest of the window.
    """
    output = connection.output
    commands = (connection.again("batch", "wait", batch_id), connection.again("batch", "results", batch_id))
    output.next = NextStep("the batch goes on without this command, and its results are kept for you", commands)
    async with connection.client(wallet=True) as client:
        with output.gauge() as gauge:
            ended = await client.batches.wait(
                batch_id, timeout=patience, every=every, progress=lambda seen: _show(gauge, seen, 0)
            )
    output.next = None
    output.facts(_facts(ended), wire_form(ended))
    return Exit.DONE if ended.status == "completed" else Exit.NO_RESULT


@batch.command()
@_BATCH
@click.option("--lines", metavar="FILE", help="The file that it was made from: gives each result its custom_id.")
@click.option("--out", type=_OUT, help="Write the results to a file.")
@connected
async def results(connection: Connection, batch_id: str, lines: str | None, out: Path | None) -> Exit:
    """Write a JSON line for each line of a batch.

    The settled ones come in file order, opened, then the failed ones. Ends with 5 when some lines have no result, with
    6 while the batch goes on.
    """
    custom_ids = _custom_ids(lines) if lines is not None else {}
    output = connection.output
    async with connection.client(wallet=True) as client:
        seen = await client.batches.get(batch_id)
        with ExitStack() as opened, output.gauge(among_results=out is None) as gauge:
            write = output.json_line if out is None else _writer(opened.enter_context(written(out)))
            ends = await _results(client, seen, custom_ids, write, gauge)
    return _told(output, ends)


async def _results(
    client: Client, seen: Batch, custom_ids: Mapping[int, str], write: Callable[[dict[str, Any]], object], gauge: Gauge
) -> Counter[str]:
    """Writes the end of every line; how many were `read`, are paid but `unread`, or `failed`."""
    ends: Counter[str] = Counter()
    gauge.stage()
    async for each in client.batches.results(seen):
        write(_line(each, custom_ids))
        ends["read" if each.error is None else "unread" if each.settled else "failed"] += 1
        gauge.show("results", ends.total(), seen.request_counts.total)
    return ends


def _told(output: Output, ends: Counter[str]) -> Exit:
    """The last words about results that were written; the exit code."""
    output.next = None
    output.say(f"{ends['read']} with a result, {ends['unread'] + ends['failed']} without")
    if ends["failed"]:
        output.say(f"{ends['failed']} failed lines cost nothing: nothing was collected for them, or it came back")
    if ends["unread"]:
        output.say(
            f"{ends['unread']} lines are done and paid but could not be read: svc batch results reads them again"
        )
    return Exit.NO_RESULT if ends["unread"] + ends["failed"] else Exit.DONE


@batch.command()
@_BATCH
@connected
async def cancel(connection: Connection, batch_id: str) -> None:
    """Post no further lines of a batch. Those on the chain go on; svc cancel takes back an open one."""
    async with connection.client(wallet=True) as client:
        seen = await client.batches.cancel(batch_id)
    connection.output.facts(_facts(seen), wire_form(seen))


def _lines(file: str) -> list[bytes]:
    return [line for line in read_bytes(file, sys.stdin.buffer).splitlines() if line.strip()]


def _pairs(metadata: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for pair in metadata:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--metadata {pair}: write it as name=value")
        pairs[name] = value
    return pairs


def _custom_ids(file: str) -> dict[int, str]:
    """By line. They travelled sealed, so that only the file knows them."""
    read = read_lines(_lines(file), "batch")
    return {line.number: line.request.custom_id for line in read if line.request.custom_id is not None}


def _line(ended: BatchResult, custom_ids: Mapping[int, str]) -> dict[str, Any]:
    number = int(ended.id.rpartition("_")[2])  # batch_req_<batch>_<line number>
    line: dict[str, Any] = {"line": number, "custom_id": custom_ids.get(number), "job_id": ended.job_id}
    if ended.result is None:
        return line | {"output": None, "error": wire_form(ended.error)}
    known = {"output": ended.result.output, "usage": ended.result.usage, "error": None}
    return line | dict(wire_form(known | in_json(ended.result.cost_parts)))


def _writer(file: IO[bytes]) -> Callable[[dict[str, Any]], object]:
    return lambda line: file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _show(gauge: Gauge, seen: Batch, lines: int) -> None:
    """`lines` is the total until the coordinator has read the file; 0 if it is unknown."""
    counts = seen.request_counts
    gauge.show(seen.status.replace("_", " "), counts.completed + counts.failed, counts.total or lines)


def _facts(seen: Batch) -> list[tuple[str, str | None]]:
    counts = seen.request_counts
    return [
        ("batch", seen.id),
        ("status", seen.status),
        ("endpoint", seen.endpoint),
        ("window", seen.completion_window),
        ("lines", str(counts.total)),
        ("completed", str(counts.completed)),
        ("failed", str(counts.failed)),
        ("created", tables.moment(seen.created_at)),
        ("expires", tables.moment(seen.expires_at)),
        ("ended", tables.moment(seen.completed_at or seen.failed_at or seen.expired_at or seen.cancelled_at)),
        *((f"  {name}", value) for name, value in (seen.metadata or {}).items()),
        ("refused", None if seen.errors is None else json.dumps(seen.errors, ensure_ascii=False)),
    ]
