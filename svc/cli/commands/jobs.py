"""One job: from order to answer in one go, or step by step."""

from pathlib import Path
from typing import Any, Final

import attrs
import click

from svc.cli import tables
from svc.cli.answers import ReadableAnswer, as_text, read_answer
from svc.cli.commands.checks import show_checked
from svc.cli.connection import Connection, connected, within_ceiling
from svc.cli.destinations import Destination, not_writable, takes_destination
from svc.cli.exit_codes import Exit
from svc.cli.inputs import OrderOptions, check_window, takes_order, who_can_open
from svc.cli.money import became, came_back, cost_of, in_words, money_of, told
from svc.cli.output import Gauge, NextStep, Output, wire_form
from svc.client import Client
from svc.core.orders import PreparedOrder, window_words
from svc.errors import (
    ChainContradicts,
    ConnectionFailed,
    JobFailed,
    NodeFailed,
    OverCeiling,
    ReceiptTimeout,
    SvcError,
    WaitTimedOut,
)
from svc.orders import Submitted
from svc.records import ENDED_BECAUSE, Deployment, Job, Quoted
from svc.results import Result
from svc.results import cost_of as provider_cost

_OUT = click.Path(path_type=Path, dir_okay=False)
_NOT_POSTED: Final = NextStep("nothing was posted, and nothing is owed")
# Errors after which the job may have been posted all the same.
_PERHAPS_POSTED: Final = (ConnectionFailed, ReceiptTimeout, ChainContradicts, NodeFailed)


@click.command()
@takes_order
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@takes_destination
@connected
async def run(
    connection: Connection,
    *,
    order: OrderOptions,
    patience: float | None,
    out: Path | None,
    folder: Path | None,
    raw: bool,
) -> None:
    """Order one job, wait for it, and show its answer.

    The text of a chat or a response is shown as text, images and clips are written to files (in the present folder,
    or --out-dir) whose names are shown; anything else is the model's JSON, as all is with --raw.

    With no rates and no provider the best live provider is taken at its ask. With rates alone the order is open to
    whoever claims it first and sealed to the escrow: whoever runs the coordinator can open it too.

    \b
      svc run demo/text-small "Why is the sky blue?" --window 1h
      svc run demo/text-small --file letter.txt -p max_output_tokens=200 --provider 3
      echo '{"input": "hi", "seed": 7}' | svc run demo/text-small --rate-in 150000 --rate-out 600000
    """
    output, place = connection.output, Destination(out, folder, raw)
    output.next = _NOT_POSTED
    async with connection.client(wallet=True) as client:
        client.require_readable()
        with place.opened() as opened, output.gauge() as gauge:
            gauge.show("sealing")
            await check_window(client, output, order.terms)
            prepared = await client.prepare(order.model, order.input, **order.terms)
            gauge.show("asking the price")
            quoted, chain = await client.quote(prepared), await client.chain()
            gauge.show("paying")
            if not prepared.terms.designated:
                output.say(f"it can be opened by {await who_can_open(client, 0)}")
            output.say(f"job {prepared.id}")  # before it is paid: whatever happens then, it can be looked for
            await _submitted(connection, client, prepared, order.max_amount, gauge=gauge, quoted=quoted)
            job = await _waited(connection, client, prepared.id, patience, gauge)
            if job.status != "completed":
                output.next = None
                because = ENDED_BECAUSE.get(job.svc.ended_because, job.status)
                raise JobFailed(job.id, because, came_back(job, chain))
            cost = cost_of(job, quoted.quote)
            result_again = connection.again("result", job.id)
            output.next = NextStep(
                f"it is done: {in_words(cost, chain)}; its result can be read again", (result_again,)
            )
            gauge.show("reading the result")
            result = await client.open(job)
            paths = opened.fill(job.id, result.output)
    # Nothing is asked for any more: what is here is delivered.
    output.say(in_words(cost, chain))
    _deliver(output, result, place, paths, {"cost": attrs.asdict(cost) | {"paid": cost.paid}})


async def _submitted(
    connection: Connection,
    client: Client,
    prepared: PreparedOrder,
    max_amount: int | None,
    *,
    gauge: Gauge | None = None,
    quoted: Quoted | None = None,
) -> Submitted:
    """The order posted. From the signature of its payment on it may be under way, whatever is heard of it."""
    output = connection.output
    output.next = NextStep("it may have been posted; look for it", (connection.again("status", prepared.id),))
    try:
        submitted = await within_ceiling(
            output, gauge, max_amount, lambda most: client.submit(prepared, quoted, max_amount=most)
        )
    except SvcError as error:
        if not isinstance(error, _PERHAPS_POSTED):
            output.next = _NOT_POSTED
        raise
    output.next = _under_way(connection, prepared.id)
    return submitted


async def _waited(connection: Connection, client: Client, job_id: str, patience: float | None, gauge: Gauge) -> Job:
    connection.output.next = _under_way(connection, job_id)
    return await client.wait(job_id, timeout=patience, on_change=lambda seen: gauge.show(_progress(seen)))


def _progress(job: Job) -> str:
    ends = tables.moment(job.svc.reclaimable_at)
    return job.status.replace("_", " ") + (f", to be settled by {ends}" if ends is not None else "")


def _under_way(connection: Connection, job_id: str) -> NextStep:
    where = "the job goes on without this command, and its result is kept for you"
    return NextStep(where, (connection.again("wait", job_id), connection.again("result", job_id)))


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
        prepared = await client.prepare(order.model, order.input, **order.terms)
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
            ("live now", ", ".join(str(each.provider_id) for each in quoted.candidates) or "nobody at these rates"),
        ],
        None,
    )


@click.command()
@takes_order
@click.option("--check", "only_check", is_flag=True, help="Say all that is wrong with the order; post nothing.")
@connected
async def submit(connection: Connection, order: OrderOptions, *, only_check: bool) -> Exit:
    """Order one job and write its id.

    Wait for it with svc wait, or come back for svc result.

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
    connection.output.next = _NOT_POSTED
    async with connection.client(wallet=True) as client:
        await check_window(client, connection.output, order.terms)
        prepared = await client.prepare(order.model, order.input, **order.terms)
        if only_check:
            return show_checked(connection.output, await client.check(prepared), await client.chain())
        connection.output.say(f"posting job {prepared.id}")
        if not prepared.terms.designated:
            connection.output.say(f"it can be opened by {await who_can_open(client, 0)}")
        submitted = await _submitted(connection, client, prepared, order.max_amount)
    if connection.output.as_json:
        connection.output.json(wire_form(attrs.asdict(submitted)))
        return Exit.DONE
    if submitted.on_chain:
        connection.output.say("the chain has the job as it was signed")
    if not submitted.mined:
        connection.output.say("sent to the chain, but not mined within a minute: svc wait follows it")
    connection.output.text(submitted.job_id)
    return Exit.DONE


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def status(connection: Connection, job_id: str) -> None:
    """Show one job, anybody's."""
    async with connection.client() as client:
        job = await client.jobs.get(job_id)
        chain, now = await client.chain(), client.now()
    connection.output.facts(_facts(job, chain, now), wire_form(job))


@click.command()
@click.argument("job_id", help="The job's id.")
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@connected
async def wait(connection: Connection, job_id: str, patience: float | None) -> Exit:
    """Wait until a job has ended.

    The command ends with 0 only if the job was completed. Without --timeout it waits as long as the job can last.
    """
    output = connection.output
    async with connection.client() as client:
        with output.gauge() as gauge:
            job = await _waited(connection, client, job_id, patience, gauge)
        chain, now = await client.chain(), client.now()
    output.facts(_facts(job, chain, now), wire_form(job))
    return Exit.DONE if job.status == "completed" else Exit.NO_RESULT


@click.command("result")
@click.argument("job_id", help="The job's id.")
@takes_destination
@click.option("--whole", type=_OUT, help="Write the opened result as it is to a file, whatever its size.")
@connected
async def result_(
    connection: Connection, *, job_id: str, out: Path | None, folder: Path | None, raw: bool, whole: Path | None
) -> None:
    """Read and open the result of one of your jobs, and show its answer as svc run does.

    It is read from the gateway and opens with the wallet that ordered it, on any machine, as long as it is stored.
    """
    if out is not None and whole is not None:
        raise click.UsageError("--out and --whole are two forms of the same: choose one")
    place = Destination(out, folder, raw)
    async with connection.client(wallet=True) as client:
        job = await client.jobs.get(job_id)
        if whole is not None:
            await _save(connection.output, client, job, whole)
            return
        with place.opened() as opened:
            result = await client.open(job)
            paths = opened.fill(job.id, result.output)
    _deliver(connection.output, result, place, paths, {"cost": {"provider": provider_cost(job)}})


_SEEN_SECONDS: Final = 30.0  # until the index has a cancellation that was mined


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def cancel(connection: Connection, job_id: str) -> Exit:
    """Take back one of your jobs that nobody has claimed yet, and say what became of it.

    Nothing was collected, nothing is owed. A job that ended already stays as it is: ends with 3 where it was completed
    and paid. A claimed one cannot be taken back.
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        cancelled = await client.cancel(job_id)
        job, chain = await _ended(client, cancelled.job_id), await client.chain()
    end = "cancelled; the index does not show it yet" if job is None else became(job, chain)
    said = [("job", cancelled.job_id), ("became", end), ("transaction", cancelled.tx_hash)]
    known = {"status": None, "ended_because": None} if job is None else _end_of(job)
    output.facts(said, wire_form(cancelled) | known)
    if job is None or job.status != "completed":
        return Exit.DONE
    output.say(f"it was completed before, and is paid; read it with {connection.again('result', job.id)}")
    return Exit.REFUSED


async def _ended(client: Client, job_id: str) -> Job | None:
    """The job once the index shows its end; None where that takes too long."""
    try:
        return await client.wait(job_id, timeout=_SEEN_SECONDS)
    except WaitTimedOut:
        return None


def _end_of(job: Job) -> dict[str, object]:
    return {"status": job.status, "ended_because": ENDED_BECAUSE.get(job.svc.ended_because)}


async def _save(output: Output, client: Client, job: Job, path: Path) -> None:
    try:
        length = await client.save(job, path)
    except OSError as error:
        raise not_writable(path, error) from None
    output.say(f"{length} bytes written to {path}")
    if output.as_json:
        output.json({"job_id": job.id, "file": str(path), "bytes": length})


def _deliver(output: Output, result: Result, place: Destination, paths: list[Path], more: dict[str, Any]) -> None:
    """The answer alone, for people and pipes; all that is known of it, in JSON."""
    answer = read_answer(result.output)
    if place.out is not None:
        output.say(f"written to {place.out}")
    if answer.remark is not None and not place.raw:
        output.say(answer.remark)
    if output.as_json:
        known = {"job_id": result.job_id, "status": result.job.status, "output": result.output, "usage": result.usage}
        files = {"files": [str(path) for path in paths]} if paths else {}
        output.json(wire_form(known | files | more))
    elif place.out is None:
        if place.raw or not paths or answer.text is not None:
            output.text(as_text(result.output, ReadableAnswer() if place.raw else answer))
        for path in paths:
            output.text(str(path))
    output.next = None


def _priced(quoted: Quoted, chain: Deployment) -> list[tuple[str, str | None]]:
    price = quoted.quote
    return [
        ("amount", f"{told(price.amount, chain)} at most"),
        ("  for the provider", f"{told(price.cap, chain)} at most"),
        ("  protocol fee", f"{told(price.fee, chain)} ({price.fee_bps / 100:g} %)"),
        ("  relay charge", told(price.gas_fee, chain)),
    ]


def _facts(job: Job, chain: Deployment, now: float) -> list[tuple[str, str | None]]:
    order = job.svc
    settled = job.status == "completed"
    return [
        ("job", job.id),
        ("status", job.status),
        ("model", job.model or f"model {order.model_id}"),
        ("owner", order.owner),
        ("provider", str(order.provider_id) if order.provider_id else None),
        ("designated", str(order.designated) if order.designated else None),
        ("window", window_words(order.sla_secs)),
        ("claimed", tables.moment(job.in_progress_at)),
        (
            "expires",
            _ahead(order.expires_at, now, "then it can be claimed no more") if job.status == "queued" else None,
        ),
        ("to be settled", _ahead(order.reclaimable_at, now, "then anybody may reclaim it, and the payment comes back")),
        ("reclaimable", _estimated(order.reclaimable_block)),
        ("ended", tables.moment(order.ended_at)),
        ("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units"),
        ("units", f"{order.units_in} in, {order.completion_tok if settled else order.units_out} out"),
        ("provider was paid", told(provider_cost(job), chain) if settled else None),
        ("money", money_of(job, chain)),
        ("result", job.result_cid),
    ]


def _estimated(block: int | None) -> str | None:
    return None if block is None else f"from about block {block} on, as blocks come now"


def _ahead(at: int | None, now: float, then: str) -> str | None:
    """A time that comes, how far off it is, and what is then."""
    if at is None:
        return None
    when = f"in {tables.span(at - now)}" if at > now else "over"
    return f"{when} ({tables.moment(at)}); {then}"
