"""Commands of orders: `run`, `quote` and `submit`."""

from pathlib import Path
from typing import Any, Final

import attrs
import click

from svc.cli import tables
from svc.cli.ceiling import pay_within_ceiling
from svc.cli.commands.checks import show_check_result
from svc.cli.commands.jobs import (
    NOT_POSTED,
    describe_progress,
    running_next_step,
    wait_for_end,
    write_output,
    write_result,
)
from svc.cli.commands.tabs import reply_cost, send_in_tab
from svc.cli.connection import Connection, add_connection_options, trace_command
from svc.cli.destinations import Destination, add_destination_options
from svc.cli.exit_codes import ExitCode
from svc.cli.json_form import to_plain_values
from svc.cli.money import compute_payment, cost_json, describe_payment, format_amount, format_refund
from svc.cli.order_options import OrderOptions, add_order_options, check_window
from svc.cli.order_readers import describe_readers
from svc.cli.output import NextStep, ProgressBar
from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.core.windows import format_window
from svc.errors import (
    ChainContradicts,
    ConnectionFailed,
    JobFailed,
    NodeFailed,
    OrderRefused,
    OverCeiling,
    PostRefused,
    ReceiptTimeout,
    SvcError,
)
from svc.orders import Submitted
from svc.records import CODE_BY_ENDED_BECAUSE, Deployment, Job, Quoted
from svc.results import Result
from svc.tabs.tabs import TabOptions

# Errors after which the job may have been posted.
_UNKNOWN_OUTCOME_ERRORS: Final = (ConnectionFailed, ReceiptTimeout, ChainContradicts, NodeFailed)


_FINAL_OPTION = click.option("--final", is_flag=True, help="Show the answer only after the chain has settled it.")
# Progress of the settle of a provisional result, by `rests_on`.
_SETTLE_PROGRESS: Final = {
    "stored": "stored by the coordinator",
    "broadcast": "sent to the chain",
    "block": "in a new block",
}


@click.command()
@add_order_options
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(0), help="Maximum seconds to wait.")
@_FINAL_OPTION
@click.option(
    "--tab", "in_tab", is_flag=True, help="Use an open tab of the model, or open a new tab and leave it open."
)
@add_destination_options
@add_connection_options
@trace_command
async def run(
    connection: Connection,
    *,
    order: OrderOptions,
    timeout_seconds: float | None,
    final: bool,
    in_tab: bool,
    out: Path | None,
    folder: Path | None,
    raw: bool,
) -> None:
    """Order one job, wait for it, and show its answer.

    The answer is shown as soon as the provider has delivered it, some blocks before the chain settles the job. It is
    then provisional, and svc prints the command that confirms it. With --final, the answer is shown once the job is
    settled.

    Text of chats and responses is shown as text. Images and clips are written to files in the current folder or
    --out-dir. Anything else, or everything with --raw, is shown as the model's JSON.

    With --tab, the request is sent in a tab. The request waits for no block, and many requests share the cost of one
    job. The tab is settled after a minute without requests (see svc tab).

    Without rates and provider, the order goes to the best live provider at its ask. With rates alone, the order is open
    to any provider, and the coordinator's operator can read it.

    \b
      svc run demo/text-small "Why is the sky blue?" --window 1h
      svc run demo/text-small --file letter.txt -p max_output_tokens=200 --provider 3
      svc run demo/image-small "a cat" -p width=512 -p height=512
      echo '{"input": "hi", "seed": 7}' | svc run demo/text-small --rate-in 150000 --rate-out 600000
    """
    output, destination = connection.output, Destination(out, folder, raw)
    output.next_step = NOT_POSTED
    async with connection.client(wallet=True) as client:
        client.require_gateway()
        if in_tab:
            await _run_in_tab(connection, client, order, destination)
            return
        with destination.open_for_writing() as destination_files, output.progress_bar() as progress_bar:
            progress_bar.show("sealing")
            await check_window(client, output, order.terms)
            prepared = await order.prepare(client)
            progress_bar.show("requesting a quote")
            quoted, deployment = await client.quote(prepared), await client.chain()
            progress_bar.show("paying")
            if not prepared.terms.designated:
                output.write_note(f"readable by: {await describe_readers(client, 0)}")
            output.write_note(f"job {prepared.id}")  # print the id before paying, so that the job can always be found
            await _submit(
                connection, client, prepared, order.max_amount, progress_bar=progress_bar, quoted=quoted, final=final
            )
            result = await _wait_for_answer(connection, client, prepared, timeout_seconds, progress_bar, final=final)
            if isinstance(result, Job):
                result = await _open_settled_result(connection, client, result, quoted, progress_bar)
            paid = compute_payment(result.job, quoted.quote)
            paths = destination_files.write_answer(prepared.id, result.output)
    # The connection is closed. Only local output follows.
    output.write_note(describe_payment(paid, deployment, provisional=result.provisional))
    money = cost_json(paid.parts) | {"authorised": paid.authorised, "returned": paid.refunded}
    write_result(output, result, destination, paths, {**money, **_provisional_json(result)})
    if result.provisional:
        output.write_note(f"not final yet (settle {_SETTLE_PROGRESS[result.rests_on]}); confirm with:")
        output.write_note(f"  {connection.command_line('wait', prepared.id, '--result', result.job.result_cid or '')}")


async def _run_in_tab(connection: Connection, client: Client, order: OrderOptions, destination: Destination) -> None:
    """Answer one request in a tab, and leave the tab open."""
    output = connection.output
    refused = sorted(order.terms.keys() & {"rate_in", "rate_out", "units_out", "endpoint", "custom_id"})
    if refused:
        name = refused[0].replace("_", "-")
        raise OrderRefused(f"an order with --tab cannot set {name}: omit {name}, or omit --tab")
    options: TabOptions = {**order.terms, "max_amount": order.max_amount}  # type: ignore[typeddict-item] # checked above
    with destination.open_for_writing() as files:
        opened, reply = await send_in_tab(connection, client, order.model, await order.build_input(client), options)
        paths = files.write_answer(opened.id, reply.output)
    deployment, cost = await client.chain(), reply_cost(opened.file, reply)
    output.write_note(f"cost {format_amount(cost, deployment)} in tab {opened.id}, which stays open for a minute")
    members = {"job_id": opened.id, "request": reply.id, "units": reply.units, "cost": cost}
    write_output(output, reply.output, destination, paths, {"usage": reply.usage, **members})


async def _wait_for_answer(
    connection: Connection,
    client: Client,
    prepared: PreparedOrder,
    timeout_seconds: float | None,
    progress_bar: ProgressBar,
    *,
    final: bool,
) -> Result | Job:
    """Return a provisional result, or the job once it has ended."""
    if final:
        return await wait_for_end(connection, client, prepared.id, timeout_seconds, progress_bar)
    output = connection.output
    output.next_step = running_next_step(connection, prepared.id)
    try:
        return await client.first_result(
            prepared, timeout=timeout_seconds, on_change=lambda seen: progress_bar.show(describe_progress(seen))
        )
    except PostRefused:
        output.next_step = NOT_POSTED
        raise


async def _open_settled_result(
    connection: Connection, client: Client, job: Job, quoted: Quoted, progress_bar: ProgressBar
) -> Result:
    """Return the result of an ended job. Raises JobFailed if the job has no result."""
    output, deployment = connection.output, await client.chain()
    if job.status != "completed":
        output.next_step = None
        because = CODE_BY_ENDED_BECAUSE.get(job.svc.ended_because, job.status)
        raise JobFailed(job.id, because, format_refund(job, deployment))
    paid = compute_payment(job, quoted.quote)
    result_command = connection.command_line("result", job.id)
    output.next_step = NextStep(
        f"job completed: {describe_payment(paid, deployment)}. Read the result again with", (result_command,)
    )
    progress_bar.show("reading the result")
    return await client.open(job)


def _provisional_json(result: Result) -> dict[str, Any]:
    return {"provisional": result.provisional, "rests_on": result.rests_on, "result_cid": result.job.result_cid}


async def _submit(
    connection: Connection,
    client: Client,
    prepared: PreparedOrder,
    max_amount: int | None,
    *,
    progress_bar: ProgressBar | None = None,
    quoted: Quoted | None = None,
    final: bool,
) -> Submitted:
    """Post the order. Once the payment is signed, the job may be running, even after an error."""
    output = connection.output
    output.next_step = NextStep(
        "the job may have been posted; check with", (connection.command_line("status", prepared.id),)
    )
    try:
        submitted = await pay_within_ceiling(
            output,
            progress_bar,
            max_amount,
            lambda ceiling: client.submit(prepared, quoted, max_amount=ceiling, final=final),
        )
    except SvcError as error:
        if not isinstance(error, _UNKNOWN_OUTCOME_ERRORS):
            output.next_step = NOT_POSTED
        raise
    output.next_step = running_next_step(connection, prepared.id)
    return submitted


@click.command()
@add_order_options
@add_connection_options
async def quote(connection: Connection, order: OrderOptions) -> None:
    """Show the price of an order without paying for it.

    Seals the input and signs the order as svc submit does, so the price is exact. Nothing is posted or owed. The amount
    is a maximum; the unused part is refunded.
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        await check_window(client, output, order.terms)
        prepared = await order.prepare(client)
        quoted = await client.quote(prepared)
        try:
            await client.check_quote(prepared, quoted, max_amount=order.max_amount)
        except OverCeiling as error:
            if not error.default:
                raise
            output.warn(error.message)
        deployment, readers = await client.chain(), await describe_readers(client, prepared.terms.designated)
    if output.as_json:
        output.write_json(to_plain_values(quoted))
        return
    output.show_facts(_price_facts(quoted, deployment), None)
    terms = prepared.terms
    output.show_facts(
        [
            ("rates", f"{terms.rates.rate_in} in, {terms.rates.rate_out} out, per 10^6 units"),
            ("units", f"{terms.units.units_in} in, at most {terms.units.units_out} out"),
            ("window", format_window(terms.sla_secs)),
            ("provider", str(terms.designated) if terms.designated else "open to any provider"),
            ("readable by", readers),
            ("live now", tables.describe_live_providers(quoted.candidates)),
        ],
        None,
    )


@click.command()
@add_order_options
@click.option("--check", "only_check", is_flag=True, help="Check the order without posting it.")
@click.option("--final", is_flag=True, help="Wait until the job is in a block.")
@add_connection_options
@trace_command
async def submit(connection: Connection, order: OrderOptions, *, only_check: bool, final: bool) -> ExitCode:
    """Order one job and write its id.

    Returns once the coordinator has stored the order. The coordinator then sends the order to the chain. With --final,
    returns once the job is in a block, and with --rpc-url also checks the job on a node. Continue with svc wait or svc
    result.

    With --provider or without rates, only one provider can read the input. An open order (rates and no provider) is
    readable by the provider that claims it and by the coordinator's operator. The maximum amount is --max-amount,
    SVC_MAX_AMOUNT or one token.

    With --check, runs every check of a post without signing a payment or posting. Exits with status
    3 if a check fails.

    \b
      job=$(svc submit demo/text-small --file prompt.txt)
      svc wait "$job" && svc result "$job"
    """
    connection.output.next_step = NOT_POSTED
    async with connection.client(wallet=True) as client:
        await check_window(client, connection.output, order.terms)
        prepared = await order.prepare(client)
        if only_check:
            return show_check_result(connection.output, await client.check(prepared), await client.chain())
        connection.output.write_note(f"posting job {prepared.id}")
        if not prepared.terms.designated:
            connection.output.write_note(f"readable by: {await describe_readers(client, 0)}")
        submitted = await _submit(connection, client, prepared, order.max_amount, final=final)
    if connection.output.as_json:
        connection.output.write_json(to_plain_values(attrs.asdict(submitted)))
        return ExitCode.DONE
    if submitted.on_chain:
        connection.output.write_note("job verified on the chain")
    if submitted.rests_on == "stored":
        connection.output.write_note("stored by the coordinator, which sends it to the chain; follow it with svc wait")
    if submitted.rests_on == "broadcast":
        connection.output.write_note("sent to the chain, but not mined within a minute; follow it with svc wait")
    connection.output.write_text(submitted.job_id)
    return ExitCode.DONE


def _price_facts(quoted: Quoted, deployment: Deployment) -> list[tuple[str, str | None]]:
    price = quoted.quote
    return [
        ("amount", f"{format_amount(price.amount, deployment)} at most"),
        ("  for the provider", f"{format_amount(price.cap, deployment)} at most"),
        ("  protocol fee", f"{format_amount(price.fee, deployment)} ({price.fee_bps / 100:g} %)"),
        ("  relay charge", format_amount(price.gas_fee, deployment)),
    ]
