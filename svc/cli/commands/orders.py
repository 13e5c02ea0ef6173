"""Orders of one job: priced, posted, and answered in one go."""

from pathlib import Path
from typing import Any, Final

import attrs
import click

from svc.cli import tables
from svc.cli.ceiling import within_ceiling
from svc.cli.commands.checks import show_checked
from svc.cli.commands.jobs import NOT_POSTED, deliver, progress_words, under_way, waited
from svc.cli.connection import Connection, connected
from svc.cli.destinations import Destination, takes_destination
from svc.cli.exit_codes import Exit
from svc.cli.json_form import wire_form
from svc.cli.money import came_back, in_json, in_words, paid_for, told
from svc.cli.order_options import OrderOptions, check_window, takes_order
from svc.cli.order_readers import who_can_open
from svc.cli.output import Gauge, NextStep
from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.core.windows import window_words
from svc.errors import (
    ChainContradicts,
    ConnectionFailed,
    JobFailed,
    NodeFailed,
    OverCeiling,
    PostRefused,
    ReceiptTimeout,
    SvcError,
)
from svc.orders import Submitted
from svc.records import ENDED_BECAUSE, Deployment, Job, Quoted
from svc.results import Result

# Errors after which the job may have been posted all the same.
_PERHAPS_POSTED: Final = (ConnectionFailed, ReceiptTimeout, ChainContradicts, NodeFailed)


_FINAL = click.option("--final", is_flag=True, help="Wait for the chain; show nothing that it could still refuse.")
# Of a provisional result, by what its settle rests on.
_RESTING: Final = {
    "stored": "stored by the coordinator, and in no block yet",
    "broadcast": "on its way to the chain, and in no block yet",
    "block": "in a block that the coordinator has not read yet",
}


@click.command()
@takes_order
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@_FINAL
@takes_destination
@connected
async def run(
    connection: Connection,
    *,
    order: OrderOptions,
    patience: float | None,
    final: bool,
    out: Path | None,
    folder: Path | None,
    raw: bool,
) -> None:
    """Order one job, wait for it, and show its answer.

    The answer is shown as soon as its provider has handed it in, some blocks before the chain has settled it: it is
    provisional then, and said to be, with the command that tells how it ends. With --final it is shown once it is paid.

    The text of a chat or a response is shown as text, images and clips are written to files (in the present folder,
    or --out-dir) whose names are shown; anything else is the model's JSON, as all is with --raw.

    With no rates and no provider the best live provider is taken at its ask. With rates alone the order is open to
    whoever claims it first and sealed to the escrow: whoever runs the coordinator can open it too.

    \b
      svc run demo/text-small "Why is the sky blue?" --window 1h
      svc run demo/text-small --file letter.txt -p max_output_tokens=200 --provider 3
      svc run demo/image-small "a cat" -p width=512 -p height=512
      echo '{"input": "hi", "seed": 7}' | svc run demo/text-small --rate-in 150000 --rate-out 600000
    """
    output, place = connection.output, Destination(out, folder, raw)
    output.next = NOT_POSTED
    async with connection.client(wallet=True) as client:
        client.require_readable()
        with place.opened() as opened, output.gauge() as gauge:
            gauge.show("sealing")
            await check_window(client, output, order.terms)
            prepared = await order.prepare(client)
            gauge.show("asking the price")
            quoted, chain = await client.quote(prepared), await client.chain()
            gauge.show("paying")
            if not prepared.terms.designated:
                output.say(f"it can be opened by {await who_can_open(client, 0)}")
            output.say(f"job {prepared.id}")  # before it is paid: whatever happens then, it can be looked for
            await _submitted(connection, client, prepared, order.max_amount, gauge=gauge, quoted=quoted, final=final)
            result = await _answered(connection, client, prepared, patience, gauge, final=final)
            if isinstance(result, Job):
                result = await _settled(connection, client, result, quoted, gauge)
            paid = paid_for(result.job, quoted.quote)
            paths = opened.fill(prepared.id, result.output)
    # Nothing is asked for any more: what is here is delivered.
    output.say(in_words(paid, chain, provisional=result.provisional))
    money = in_json(paid.parts) | {"authorised": paid.authorised, "returned": paid.returned}
    deliver(output, result, place, paths, {**money, **_standing(result)})
    if result.provisional:
        output.say(f"provisional: its settle is {_RESTING[result.rests_on]}; this tells how it ends:")
        output.say(f"  {connection.again('wait', prepared.id, '--result', result.job.result_cid or '')}")


async def _answered(
    connection: Connection,
    client: Client,
    prepared: PreparedOrder,
    patience: float | None,
    gauge: Gauge,
    *,
    final: bool,
) -> Result | Job:
    """A provisional result, or the job once it has ended."""
    if final:
        return await waited(connection, client, prepared.id, patience, gauge)
    output = connection.output
    output.next = under_way(connection, prepared.id)
    try:
        return await client.first_result(
            prepared, timeout=patience, on_change=lambda seen: gauge.show(progress_words(seen))
        )
    except PostRefused:
        output.next = NOT_POSTED
        raise


async def _settled(connection: Connection, client: Client, job: Job, quoted: Quoted, gauge: Gauge) -> Result:
    """The result of a job that has ended. Raises JobFailed for one without."""
    output, chain = connection.output, await client.chain()
    if job.status != "completed":
        output.next = None
        because = ENDED_BECAUSE.get(job.svc.ended_because, job.status)
        raise JobFailed(job.id, because, came_back(job, chain))
    paid = paid_for(job, quoted.quote)
    result_again = connection.again("result", job.id)
    output.next = NextStep(f"job completed: {in_words(paid, chain)}. You can read the result again", (result_again,))
    gauge.show("reading the result")
    return await client.open(job)


def _standing(result: Result) -> dict[str, Any]:
    return {"provisional": result.provisional, "rests_on": result.rests_on, "result_cid": result.job.result_cid}


async def _submitted(
    connection: Connection,
    client: Client,
    prepared: PreparedOrder,
    max_amount: int | None,
    *,
    gauge: Gauge | None = None,
    quoted: Quoted | None = None,
    final: bool,
) -> Submitted:
    """The order posted. From the signature of its payment on it may be under way, whatever is heard of it."""
    output = connection.output
    output.next = NextStep("it may have been posted; look for it", (connection.again("status", prepared.id),))
    try:
        submitted = await within_ceiling(
            output, gauge, max_amount, lambda most: client.submit(prepared, quoted, max_amount=most, final=final)
        )
    except SvcError as error:
        if not isinstance(error, _PERHAPS_POSTED):
            output.next = NOT_POSTED
        raise
    output.next = under_way(connection, prepared.id)
    return submitted


@click.command()
@takes_order
@connected
async def quote(connection: Connection, order: OrderOptions) -> None:
    """Say what an order would come to, without paying for it.

    The input is sealed and the order signed as for submit, so a price is a price; nothing is posted and nothing owed.
    The amount is authorised at most; what the output does not use comes back.
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        await check_window(client, output, order.terms)
        prepared = await order.prepare(client)
        quoted = await client.quote(prepared)
        try:
            await client.check_quote(prepared, quoted, max_amount=order.max_amount)
        except OverCeiling as over:
            if not over.default:
                raise
            output.warn(over.message)
        chain, readers = await client.chain(), await who_can_open(client, prepared.terms.designated)
    if output.as_json:
        output.json(wire_form(quoted))
        return
    output.facts(_priced(quoted, chain), None)
    terms = prepared.terms
    output.facts(
        [
            ("rates", f"{terms.rates.rate_in} in, {terms.rates.rate_out} out, per 10^6 units"),
            ("units", f"{terms.units.units_in} in, at most {terms.units.units_out} out"),
            ("window", window_words(terms.sla_secs)),
            ("provider", str(terms.designated) if terms.designated else "whoever claims it first"),
            ("can be opened by", readers),
            ("live now", tables.live(quoted.candidates)),
        ],
        None,
    )


@click.command()
@takes_order
@click.option("--check", "only_check", is_flag=True, help="Say all that is wrong with the order; post nothing.")
@click.option("--final", is_flag=True, help="Wait until a block has it.")
@connected
async def submit(connection: Connection, order: OrderOptions, *, only_check: bool, final: bool) -> Exit:
    """Order one job and write its id.

    It ends as soon as the coordinator has stored the order, which it then sends to the chain; with --final, once a
    block has it, and a node of the chain (--rpc-url) shows it as it was signed. Wait for it with svc wait, or come back
    for svc result.

    With --provider, or with no rates, the input is sealed to one provider, who alone can open it. An open order (rates
    and no provider) is sealed to the coordinator's escrow: whoever runs the coordinator holds its key and can open it,
    as can the provider that claims the job. Nothing is signed above the ceiling: --max-amount, SVC_MAX_AMOUNT, or one
    token.

    With --check the order is sealed and signed, held against every check that posting it makes, and not posted: no
    payment is signed. Ends with 3 where a check fails.

    \b
      job=$(svc submit demo/text-small --file prompt.txt)
      svc wait "$job" && svc result "$job"
    """
    connection.output.next = NOT_POSTED
    async with connection.client(wallet=True) as client:
        await check_window(client, connection.output, order.terms)
        prepared = await order.prepare(client)
        if only_check:
            return show_checked(connection.output, await client.check(prepared), await client.chain())
        connection.output.say(f"posting job {prepared.id}")
        if not prepared.terms.designated:
            connection.output.say(f"it can be opened by {await who_can_open(client, 0)}")
        submitted = await _submitted(connection, client, prepared, order.max_amount, final=final)
    if connection.output.as_json:
        connection.output.json(wire_form(attrs.asdict(submitted)))
        return Exit.DONE
    if submitted.on_chain:
        connection.output.say("the chain has the job as it was signed")
    if submitted.rests_on == "stored":
        connection.output.say("stored by the coordinator, which sends it to the chain: svc wait follows it")
    if submitted.rests_on == "broadcast":
        connection.output.say("sent to the chain, but not mined within a minute: svc wait follows it")
    connection.output.text(submitted.job_id)
    return Exit.DONE


def _priced(quoted: Quoted, chain: Deployment) -> list[tuple[str, str | None]]:
    price = quoted.quote
    return [
        ("amount", f"{told(price.amount, chain)} at most"),
        ("  for the provider", f"{told(price.cap, chain)} at most"),
        ("  protocol fee", f"{told(price.fee, chain)} ({price.fee_bps / 100:g} %)"),
        ("  relay charge", told(price.gas_fee, chain)),
    ]
