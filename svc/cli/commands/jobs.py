"""One job: from order to answer in one go, or step by step."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import attrs
import click

from svc.cli import tables
from svc.cli.commands.market import names_of
from svc.cli.connection import Connection, connected, within_ceiling
from svc.cli.failures import Exit
from svc.cli.inputs import OrderOptions, takes_order, who_can_open
from svc.cli.output import Output, cost_of, in_words, not_writable, wire_form, written
from svc.client import Client
from svc.errors import OverCeiling
from svc.records import Deployment, Job, Quoted
from svc.results import Result
from svc.results import cost_of as provider_cost

_OUT = click.Path(path_type=Path, dir_okay=False)


@click.command()
@takes_order
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@click.option("--out", type=_OUT, help="Write the output to a file instead.")
@connected
async def run(connection: Connection, order: OrderOptions, patience: float | None, out: Path | None) -> None:
    """Order one job, wait for it, and write its output.

    With no rates and no provider the best live provider is taken at its ask. With rates alone the order is open to
    whoever claims it first and sealed to the escrow: whoever runs the coordinator can open it too. A string comes out
    as it is, anything else as JSON.

    \b
      svc run demo/text-small "Why is the sky blue?" --window 1h
      svc run demo/text-small --file letter.txt -p max_output_tokens=200 --provider 3
      echo '{"input": "hi", "seed": 7}' | svc run demo/text-small --rate-in 150000 --rate-out 600000
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        with ExitStack() as opened, output.gauge() as gauge:
            file = None if out is None else opened.enter_context(written(out))
            gauge.show("sealing")
            prepared = await client.prepare(order.model, order.input, **order.terms)
            gauge.show("asking the price")
            quoted, chain = await client.quote(prepared), await client.chain()
            gauge.show("paying")
            if not prepared.terms.designated:
                output.say(f"it can be opened by {await who_can_open(client, 0)}")
            output.say(f"job {prepared.id}")  # before it is paid: whatever happens then, it can be looked for
            await within_ceiling(
                output, gauge, order.max_amount, lambda most: client.submit(prepared, quoted, max_amount=most)
            )
            job = await client.wait(
                prepared.id, timeout=patience, on_change=lambda seen: gauge.show(seen.status.replace("_", " "))
            )
            gauge.show("reading the result")
            result = await client.open(job)
            _fill(file, result)
    # Nothing is asked for any more: what is here is delivered.
    cost = cost_of(job, quoted.quote)
    output.say(in_words(cost, chain))
    _deliver(output, result, out, {"cost": attrs.asdict(cost) | {"paid": cost.paid}})


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
            ("window", tables.window(terms.sla_secs)),
            ("provider", str(terms.designated) if terms.designated else "whoever claims it first"),
            ("can be opened by", readers),
            ("live now", ", ".join(str(each.provider_id) for each in quoted.candidates) or "nobody at these rates"),
        ],
        None,
    )


@click.command()
@takes_order
@connected
async def submit(connection: Connection, order: OrderOptions) -> None:
    """Order one job and write its id.

    Wait for it with svc wait, or come back for svc result.

    With --provider, or with no rates, the input is sealed to one provider, who alone can open it. An open order (rates
    and no provider) is sealed to the coordinator's escrow: whoever runs the coordinator holds its key and can open it,
    as can the provider that claims the job. Nothing is signed above the ceiling: --max-amount, SVC_MAX_AMOUNT, or one
    token.

    \b
      job=$(svc submit demo/text-small --file prompt.txt)
      svc wait "$job" && svc result "$job"
    """
    async with connection.client(wallet=True) as client:
        prepared = await client.prepare(order.model, order.input, **order.terms)
        connection.output.say(f"posting job {prepared.id}")
        if not prepared.terms.designated:
            connection.output.say(f"it can be opened by {await who_can_open(client, 0)}")
        submitted = await within_ceiling(
            connection.output, None, order.max_amount, lambda most: client.submit(prepared, max_amount=most)
        )
    if connection.output.as_json:
        connection.output.json(wire_form(attrs.asdict(submitted)))
        return
    if submitted.on_chain:
        connection.output.say("the chain has the job as it was signed")
    if not submitted.mined:
        connection.output.say("sent to the chain, but not mined within a minute: svc wait follows it")
    connection.output.text(submitted.job_id)


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def status(connection: Connection, job_id: str) -> None:
    """Show one job, anybody's."""
    async with connection.client() as client:
        job = await client.jobs.get(job_id)
        chain = await client.chain()
    connection.output.facts(_facts(job, chain), wire_form(job))


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
            job = await client.wait(
                job_id, timeout=patience, on_change=lambda seen: gauge.show(seen.status.replace("_", " "))
            )
        chain = await client.chain()
    output.facts(_facts(job, chain), wire_form(job))
    return Exit.DONE if job.status == "completed" else Exit.NO_RESULT


@click.command("result")
@click.argument("job_id", help="The job's id.")
@click.option("--out", type=_OUT, help="Write the output to a file instead.")
@click.option("--whole", type=_OUT, help="Write the opened result as it is to a file, whatever its size.")
@connected
async def result_(connection: Connection, job_id: str, out: Path | None, whole: Path | None) -> None:
    """Read and open the result of one of your jobs.

    It is read from the gateway and opens with the wallet that ordered it, on any machine, as long as it is stored.
    """
    if out is not None and whole is not None:
        raise click.UsageError("--out and --whole are two forms of the same: choose one")
    async with connection.client(wallet=True) as client:
        job = await client.jobs.get(job_id)
        if whole is not None:
            await _save(connection.output, client, job, whole)
            return
        with ExitStack() as opened:
            file = None if out is None else opened.enter_context(written(out))
            result = await client.open(job)
            _fill(file, result)
    _deliver(connection.output, result, out, {"cost": {"provider": provider_cost(job)}})


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def cancel(connection: Connection, job_id: str) -> None:
    """Take back one of your jobs that nobody has claimed yet.

    Nothing was collected, nothing is owed. A job that ended already stays as it is. A claimed one cannot be taken back.
    """
    async with connection.client(wallet=True) as client:
        cancelled = await client.cancel(job_id)
    connection.output.facts([("job", cancelled.job_id), ("transaction", cancelled.tx_hash)], wire_form(cancelled))


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def verify(connection: Connection, job_id: str) -> Exit:
    """Show who vouches for each fact of a job: a signature, the chain, or the coordinator's word alone.

    With a node of the chain (--rpc-url, SVC_RPC_URL; several must agree) the job is read from the registry's events,
    and the owner's signature over the payment is checked here. Where the coordinator says otherwise the command ends
    with 3. Without a node nothing but the id is checked, and the command ends with 9.
    """
    async with connection.client() as client:
        verified = await client.verify(job_id)
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
@connected
async def jobs(connection: Connection, state: Any, owner: str | None, limit: int, summary: bool) -> None:
    """List jobs: yours, or those of another owner.

    The book is public; what is in a job is not.
    """
    output = connection.output
    async with connection.client(wallet=owner is None) as client:
        whose = owner or client.address
        names = await names_of(client)
        if not summary:
            listed = await client.jobs.book(owner=whose, state=state, order="newest", limit=limit)
            output.table(tables.jobs(listed, names), wire_form(listed))
            return
        totals, chain = await client.jobs.summary(whose), await client.chain()
    facts: list[tuple[str, str | None]] = [
        ("jobs", str(totals.jobs)),
        ("completed", str(totals.completed)),
        ("escrowed at most", _money(totals.escrowed, chain)),
    ]
    facts += [
        (f"  {tables.name_of(each.model_id, names)}", f"{each.completed} of {each.jobs} completed")
        for each in totals.by_model
    ]
    output.facts(facts, wire_form(totals))


async def _save(output: Output, client: Client, job: Job, path: Path) -> None:
    try:
        length = await client.save(job, path)
    except OSError as error:
        raise not_writable(path, error) from None
    output.say(f"{length} bytes written to {path}")
    if output.as_json:
        output.json({"job_id": job.id, "file": str(path), "bytes": length})


def _fill(file: IO[bytes] | None, result: Result) -> None:
    if file is not None:
        file.write(_as_text(result.output).encode() + b"\n")


def _deliver(output: Output, result: Result, out: Path | None, more: dict[str, Any]) -> None:
    """The output alone, for people and pipes; all that is known of it, in JSON."""
    if out is not None:
        output.say(f"written to {out}")
    if output.as_json:
        known = {"job_id": result.job_id, "status": result.job.status, "output": result.output, "usage": result.usage}
        output.json(wire_form(known | more))
    elif out is None:
        output.text(_as_text(result.output))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _priced(quoted: Quoted, chain: Deployment) -> list[tuple[str, str | None]]:
    price = quoted.quote
    return [
        ("amount", f"{_money(price.amount, chain)} at most"),
        ("  for the provider", f"{_money(price.cap, chain)} at most"),
        ("  protocol fee", f"{_money(price.fee, chain)} ({price.fee_bps / 100:g} %)"),
        ("  relay charge", _money(price.gas_fee, chain)),
    ]


def _facts(job: Job, chain: Deployment) -> list[tuple[str, str | None]]:
    order = job.svc
    settled = job.status == "completed"
    return [
        ("job", job.id),
        ("status", job.status),
        ("model", job.model or f"model {order.model_id}"),
        ("owner", order.owner),
        ("provider", str(order.provider_id) if order.provider_id else None),
        ("designated", str(order.designated) if order.designated else None),
        ("window", tables.window(order.sla_secs)),
        ("claimed", tables.moment(job.in_progress_at)),
        ("expires", tables.moment(order.expires_at) if job.status == "queued" else None),
        ("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units"),
        ("units", f"{order.units_in} in, {order.completion_tok if settled else order.units_out} out"),
        ("provider was paid", _money(provider_cost(job), chain) if settled else None),
        ("result", job.result_cid),
    ]


def _money(amount: int, chain: Deployment) -> str:
    return tables.token(amount, chain.decimals, chain.token_domain.name)
