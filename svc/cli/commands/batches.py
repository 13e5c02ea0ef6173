"""Command `svc batch`: many jobs from one file."""

import functools
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import attrs
import click

from common.bundle import MAX_ITEMS
from svc.batches.offers import LineOffer
from svc.batches.preparation import PreparedBatch
from svc.batches.results import BatchResult
from svc.cli import tables
from svc.cli.ceiling import pay_within_ceiling
from svc.cli.commands.market import read_model_names
from svc.cli.connection import Connection, add_connection_options
from svc.cli.destinations import open_output
from svc.cli.exit_codes import ExitCode
from svc.cli.failures import hint_for
from svc.cli.inputs import read_bytes
from svc.cli.json_form import to_plain_values
from svc.cli.money import cost_json
from svc.cli.output import NextStep, Output, ProgressBar
from svc.client import Client
from svc.core.batch_lines import read_lines
from svc.core.bids import read_rates
from svc.core.bundles import line_count
from svc.errors import PlanShort
from svc.records import Batch

_FILE_ARGUMENT = click.argument("file", help="JSONL file, or - for standard input.")
_NOT_POSTED: Final = NextStep("nothing was posted, and nothing is owed")
_FILE_PATH_TYPE = click.Path(path_type=Path, dir_okay=False)
_BATCH_ARGUMENT = click.argument("batch_id", help="Id of the batch.")
_WINDOW_OPTION = click.option(
    "--window", "-w", type=click.Choice(("1h", "async", "24h", "batch")), default="24h", help="Time limit."
)


@click.group()
def batch() -> None:
    """Run many jobs from one JSONL file as a batch.

    \b
    Each line is an object:
      {"custom_id": "page 7", "body": {"model": "demo/text-small", "input": "…", "max_output_tokens": 100}}
    body.rate_in, body.rate_out and body.units_out set the order's terms; the rest of body is the model's input.
    Lines without rates go to the providers in the network's plan. With --market, --rate-in or --rate-out they are open
    to any provider. custom_id is sealed.

    \b
      svc batch run pages.jsonl --window 1h > answers.jsonl
      svc batch plan pages.jsonl --window 1h
      id=$(svc batch create pages.jsonl --window 1h)
      svc batch wait "$id" && svc batch results "$id" --lines pages.jsonl > answers.jsonl
    """


def _add_offer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options for an offer to lines without rates. `command` gets the offer as its argument `offer`."""

    @click.option("--rate-in", type=click.IntRange(0), help="For lines without rates: base units per 10^6 of input.")
    @click.option("--rate-out", type=click.IntRange(0), help="For lines without rates: base units per 10^6 of output.")
    @click.option("--market", is_flag=True, help="For lines without rates: offer the lowest current ask.")
    @functools.wraps(command)
    def with_offer(*, rate_in: int | None, rate_out: int | None, market: bool, **options: Any) -> Any:
        rates = read_rates(rate_in, rate_out)
        if market and rates is not None:
            raise click.UsageError("use either --market or rates, not both")
        return command(offer=LineOffer(rates) if market or rates is not None else None, **options)

    return with_offer


_BUNDLE_OPTION = click.option(
    "--bundle",
    type=click.IntRange(1, MAX_ITEMS),
    help="Maximum number of lines in a job (1: no bundles).",
)


def _add_batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the file and terms of a new batch, and pass a `_BatchOrder` as `order`."""

    @_FILE_ARGUMENT
    @_WINDOW_OPTION
    @_add_offer_options
    @_BUNDLE_OPTION
    @click.option(
        "--provider",
        "providers",
        type=click.IntRange(1, 2**32 - 1),
        multiple=True,
        help="Order lines that set rates from these providers, in turn.",
    )
    @click.option("--metadata", metavar="NAME=VALUE", multiple=True, help="Metadata of the batch, stored in the clear.")
    @click.option(
        "--max-amount",
        type=click.IntRange(1),
        help="Maximum for all lines in base units (default: ten tokens).",
    )
    @click.option(
        "--max-line-amount",
        type=click.IntRange(1),
        help="Maximum amount of a line.  [env: SVC_MAX_AMOUNT]",
    )
    @functools.wraps(command)
    def with_terms(*, file: str, metadata: tuple[str, ...], **options: Any) -> Any:
        pairs = _read_metadata(metadata)
        terms = {name: options.pop(name) for name in ("window", "offer", "providers", "bundle", "max_line_amount")}
        return command(order=_BatchOrder(_read_lines(file), pairs, options.pop("max_amount"), terms), **options)

    return with_terms


@attrs.frozen
class _BatchOrder:
    """Options of a new batch. `terms` are keyword arguments of the client's `prepare`."""

    lines: list[bytes]
    metadata: dict[str, str]
    max_amount: int | None
    terms: dict[str, Any]


@batch.command()
@_FILE_ARGUMENT
@_WINDOW_OPTION
@_add_offer_options
@_BUNDLE_OPTION
@add_connection_options
async def plan(connection: Connection, file: str, window: str, offer: LineOffer | None, bundle: int | None) -> ExitCode:
    """Show which providers would take the lines, and at what price.

    Plans only lines that have no rates of their own. Nothing is reserved. Exits with status 4 if the network has no
    capacity for some of these lines.
    """
    lines = _read_lines(file)
    async with connection.client(wallet=True) as client:
        model_names = await read_model_names(client)
        planned = await client.batches.plan(lines, window=window, offer=offer, bundle=bundle)
    connection.output.show_table(tables.plan_table(planned, model_names), to_plain_values(planned))
    unplaced = sum(each.lines - sum(share.lines for share in each.allocation) for each in planned)
    if unplaced:
        connection.output.warn(f"no provider has capacity for {unplaced} lines in this window now")
        connection.output.write_note(hint_for(PlanShort("", 0, 0)) or "")
        return ExitCode.TRY_AGAIN
    return ExitCode.DONE


@batch.command()
@_add_batch_options
@add_connection_options
async def create(connection: Connection, order: _BatchOrder) -> None:
    """Start a batch and write its id.

    Plans, seals, signs and pays every line. If one line is wrong, the whole file is rejected before anything is sent.
    With --market or rates, lines without rates are offered to any provider and wait for capacity. Without these
    options, the batch is rejected if the network has no capacity for all of its lines now.

    Only the named provider can read a line. An open line (rates and no --provider) is readable by the provider that
    claims the job and by the coordinator's operator.
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        with output.progress_bar() as progress_bar:
            prepared, created = await _create_batch(connection, client, order, progress_bar)
    output.next_step = None
    if output.as_json:
        output.write_json(
            to_plain_values(created) | {"amount": str(prepared.amount), "job_ids": list(prepared.job_ids)}
        )
    else:
        output.write_text(created.id)


@batch.command("run")
@_add_batch_options
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(0), help="Maximum seconds to wait.")
@click.option("--every", type=click.FloatRange(0.1), default=5.0, help="Seconds between status requests.")
@click.option("--out", type=_FILE_PATH_TYPE, help="Write the results to this file.")
@click.option("--again", metavar="BATCH", help="Order only the lines that failed in this batch of the same file.")
@add_connection_options
async def run_(
    connection: Connection,
    *,
    order: _BatchOrder,
    timeout_seconds: float | None,
    every: float,
    out: Path | None,
    again: str | None,
) -> ExitCode:
    """Start a batch, wait for it, and write its results.

    Runs svc batch create, wait and results. Shows progress on standard error. Exits with status 5 if some lines have
    no result. Several lines share a job if the provider accepts bundles. This costs less; --bundle 1 turns bundles off.

    \b
      svc batch run pages.jsonl --window 1h > answers.jsonl
      svc batch run pages.jsonl --window 1h --again batch_0123 >> answers.jsonl
    """
    output = connection.output
    output.next_step = _NOT_POSTED
    async with connection.client(wallet=True) as client:
        client.require_gateway()
        numbers = list(range(1, len(order.lines) + 1))
        if again is not None:
            numbers = await _find_failed_lines(client, again, len(order.lines))
            if not numbers:
                output.write_note(f"no line of {again} failed")
                return ExitCode.DONE
            order = attrs.evolve(order, lines=[order.lines[number - 1] for number in numbers])
        with ExitStack() as stack, output.progress_bar(shares_terminal=out is None) as progress_bar:
            write = output.write_json_line if out is None else _line_writer(stack.enter_context(open_output(out)))
            prepared, created = await _create_batch(connection, client, order, progress_bar)
            output.write_note(f"batch {created.id}")
            progress_bar.start_stage()
            ended = await client.batches.wait(
                created.id,
                timeout=timeout_seconds,
                every=every,
                progress=lambda current: _show_progress(progress_bar, current, len(prepared.job_ids)),
            )
            results_command = connection.command_line("batch", "results", created.id)
            output.next_step = NextStep(
                f"the batch is {ended.status}; its results can be read again", (results_command,)
            )
            results = client.batches.results(ended, custom_ids=prepared.custom_ids, fee_terms=prepared.fees)
            outcomes = await _write_results(results, prepared.lines, write, progress_bar, numbers)
    return _report_outcomes(output, outcomes)


async def _find_failed_lines(client: Client, batch_id: str, lines: int) -> list[int]:
    """Return the numbers of the lines that failed and cost nothing. The batch must have ended."""
    failed, seen = [], 0
    async for each in client.batches.results(batch_id):
        seen += 1
        if each.error is not None and not each.settled:
            failed.append(each.line)
    if seen != lines:
        raise click.UsageError(
            f"{batch_id} has {seen} lines, but the file has {lines}: use --again with the file of that batch"
        )
    return sorted(failed)


async def _create_batch(
    connection: Connection, client: Client, order: _BatchOrder, progress_bar: ProgressBar
) -> tuple[PreparedBatch, Batch]:
    """Prepare and create a batch. If the command ends early, `output.next_step` shows how to continue."""
    output = connection.output
    output.next_step = _NOT_POSTED

    async def prepare(max_amount: int | None) -> PreparedBatch:
        progress_bar.start_stage()
        return await client.batches.prepare(
            order.lines,
            **order.terms,
            max_amount=max_amount,
            progress=lambda done: progress_bar.show("sealing and signing", done, len(order.lines)),
        )

    prepared = await pay_within_ceiling(output, progress_bar, order.max_amount, prepare)
    # Read the deployment before the batch exists, so that no error hides the id of the batch.
    deployment = await client.chain()
    progress_bar.start_stage()
    progress_bar.show("uploading")
    output.next_step = NextStep(
        "the batch may have been created; check with", (connection.command_line("batch", "list"),)
    )
    created = await client.batches.create(prepared, metadata=order.metadata)
    commands = (
        connection.command_line("batch", "wait", created.id),
        connection.command_line("batch", "results", created.id),
    )
    output.next_step = NextStep("the batch continues, and its results are kept for you", commands)
    for name in prepared.unlisted:
        output.warn(f"the model does not list the parameter {name!r}, which was sent unchanged")
    max_amount = tables.format_amount(prepared.amount, deployment.decimals, deployment.token_domain.name)
    output.write_note(f"{prepared.lines} lines, {max_amount} at most")
    return prepared, created


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 100), default=20, help="Maximum number of batches, newest first.")
@click.option("--after", metavar="BATCH", help="Only batches older than this one.")
@add_connection_options
async def list_(connection: Connection, limit: int, after: str | None) -> None:
    """List your batches."""
    async with connection.client(wallet=True) as client:
        page = await client.batches.list(limit=limit, after=after)
    connection.output.show_table(tables.batches_table(page.data), to_plain_values(page))


@batch.command()
@_BATCH_ARGUMENT
@add_connection_options
async def status(connection: Connection, batch_id: str) -> None:
    """Show one of your batches."""
    async with connection.client(wallet=True) as client:
        current = await client.batches.get(batch_id)
    connection.output.show_facts(_batch_facts(current), to_plain_values(current))


@batch.command()
@_BATCH_ARGUMENT
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(0), help="Maximum seconds to wait.")
@click.option("--every", type=click.FloatRange(0.1), default=60.0, help="Seconds between status requests.")
@add_connection_options
async def wait(connection: Connection, batch_id: str, timeout_seconds: float | None, every: float) -> ExitCode:
    """Wait until a batch has ended.

    Exits with status 0 only if the batch was completed. Single lines may still have failed: see svc batch results.
    Without --timeout, waits for the rest of the window.
    """
    output = connection.output
    commands = (
        connection.command_line("batch", "wait", batch_id),
        connection.command_line("batch", "results", batch_id),
    )
    output.next_step = NextStep("the batch continues, and its results are kept for you", commands)
    async with connection.client(wallet=True) as client:
        with output.progress_bar() as progress_bar:
            ended = await client.batches.wait(
                batch_id,
                timeout=timeout_seconds,
                every=every,
                progress=lambda current: _show_progress(progress_bar, current, 0),
            )
    output.next_step = None
    output.show_facts(_batch_facts(ended), to_plain_values(ended))
    return ExitCode.DONE if ended.status == "completed" else ExitCode.NO_RESULT


@batch.command()
@_BATCH_ARGUMENT
@click.option("--lines", metavar="FILE", help="Input file of the batch, to add the custom_id to each result.")
@click.option("--out", type=_FILE_PATH_TYPE, help="Write the results to this file.")
@add_connection_options
async def results(connection: Connection, batch_id: str, lines: str | None, out: Path | None) -> ExitCode:
    """Write a JSON line for each line of a batch.

    Writes the settled lines in file order, then the failed lines. Exits with status 5 if some lines have no result, and
    with status 6 while the batch is running.
    """
    custom_ids = _read_custom_ids(lines) if lines is not None else {}
    output = connection.output
    async with connection.client(wallet=True) as client:
        current = await client.batches.get(batch_id)
        with ExitStack() as stack, output.progress_bar(shares_terminal=out is None) as progress_bar:
            write = output.write_json_line if out is None else _line_writer(stack.enter_context(open_output(out)))
            found = client.batches.results(current, custom_ids=custom_ids)
            outcomes = await _write_results(found, _line_count(current), write, progress_bar)
    return _report_outcomes(output, outcomes)


async def _write_results(
    results: AsyncIterator[BatchResult],
    lines: int,
    write: Callable[[dict[str, Any]], object],
    progress_bar: ProgressBar,
    numbers: Sequence[int] | None = None,
) -> Counter[str]:
    """Write the result of every line. Return the number of lines that were `read`, `unread` (paid) or `failed`.

    `numbers`: line numbers in the file, if only some lines of the file were ordered.
    """
    outcomes: Counter[str] = Counter()
    progress_bar.start_stage()
    async for each in results:
        write(_result_json(each, each.line if numbers is None else numbers[each.line - 1]))
        outcomes["read" if each.error is None else "unread" if each.settled else "failed"] += 1
        progress_bar.show("results", outcomes.total(), lines)
    return outcomes


def _report_outcomes(output: Output, outcomes: Counter[str]) -> ExitCode:
    """Report the number of results, and return the exit code."""
    output.next_step = None
    output.write_note(f"{outcomes['read']} with a result, {outcomes['unread'] + outcomes['failed']} without")
    if outcomes["failed"]:
        output.write_note(f"{outcomes['failed']} failed lines cost nothing")
    if outcomes["unread"]:
        output.write_note(f"{outcomes['unread']} lines are paid but could not be read: retry with svc batch results")
    return ExitCode.NO_RESULT if outcomes["unread"] + outcomes["failed"] else ExitCode.DONE


@batch.command()
@_BATCH_ARGUMENT
@add_connection_options
async def cancel(connection: Connection, batch_id: str) -> None:
    """Stop posting lines of a batch. Posted lines continue; cancel an unclaimed job with svc cancel."""
    async with connection.client(wallet=True) as client:
        current = await client.batches.cancel(batch_id)
    connection.output.show_facts(_batch_facts(current), to_plain_values(current))


def _read_lines(file: str) -> list[bytes]:
    return [line for line in read_bytes(file, sys.stdin.buffer).splitlines() if line.strip()]


def _read_metadata(metadata: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for pair in metadata:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--metadata {pair}: expected name=value")
        pairs[name] = value
    return pairs


def _read_custom_ids(file: str) -> dict[int, str]:
    """Return the custom_id of each line of the input file. The coordinator has only sealed custom_ids."""
    read = read_lines(_read_lines(file), "batch")
    return {line.number: line.request.custom_id for line in read if line.request.custom_id is not None}


def _result_json(ended: BatchResult, number: int) -> dict[str, Any]:
    line: dict[str, Any] = {"line": number, "custom_id": ended.custom_id, "job_id": ended.job_id}
    if ended.result is None:
        return line | {"output": None, "error": to_plain_values(ended.error)}
    members = {"output": ended.result.output, "usage": ended.result.usage, "error": None}
    return line | dict(to_plain_values(members | cost_json(ended.result.cost_parts)))


def _line_writer(file: IO[bytes]) -> Callable[[dict[str, Any]], object]:
    return lambda line: file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _show_progress(progress_bar: ProgressBar, current: Batch, jobs: int) -> None:
    """Show the progress in jobs. Until the coordinator has counted the jobs, `jobs` is the total (0: unknown)."""
    counts = current.request_counts
    progress_bar.show(current.status.replace("_", " "), counts.completed + counts.failed, counts.total or jobs)


def _line_count(current: Batch) -> int:
    return line_count(current.metadata, current.request_counts.total)


def _batch_facts(current: Batch) -> list[tuple[str, str | None]]:
    counts = current.request_counts
    return [
        ("batch", current.id),
        ("status", current.status),
        ("endpoint", current.endpoint),
        ("window", current.completion_window),
        ("lines", str(_line_count(current))),
        ("jobs", str(counts.total)),
        ("completed", str(counts.completed)),
        ("failed", str(counts.failed)),
        ("created", tables.format_time(current.created_at)),
        ("expires", tables.format_time(current.expires_at)),
        (
            "ended",
            tables.format_time(current.completed_at or current.failed_at or current.expired_at or current.cancelled_at),
        ),
        *((f"  {name}", value) for name, value in (current.metadata or {}).items()),
        ("errors", None if current.errors is None else json.dumps(current.errors, ensure_ascii=False)),
    ]
