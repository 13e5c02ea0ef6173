"""A job that is posted: where it stands, its end, its result, taking it back."""

from pathlib import Path
from typing import Any, Final

import click

from svc.cli import tables
from svc.cli.answers import ReadableAnswer, as_text, read_answer
from svc.cli.connection import Connection, connected
from svc.cli.destinations import Destination, not_writable, takes_destination
from svc.cli.exit_codes import Exit
from svc.cli.json_form import wire_form
from svc.cli.money import became, in_json, money_of
from svc.cli.output import Gauge, NextStep, Output
from svc.client import Client
from svc.core.windows import window_words
from svc.errors import (
    NotFound,
    PostRefused,
    ResultUnreadable,
    WaitTimedOut,
)
from svc.jobs import require_posted
from svc.progress import require_settled
from svc.records import ENDED_BECAUSE, Deployment, Job, Progress
from svc.results import Result

_OUT = click.Path(path_type=Path, dir_okay=False)
NOT_POSTED: Final = NextStep("nothing was posted, and nothing is owed")


async def waited(connection: Connection, client: Client, job_id: str, patience: float | None, gauge: Gauge) -> Job:
    """The job once it has ended."""
    output = connection.output
    output.next = under_way(connection, job_id)
    try:
        return await client.wait(job_id, timeout=patience, on_change=lambda seen: gauge.show(progress_words(seen)))
    except PostRefused:
        output.next = NOT_POSTED
        raise


def progress_words(job: Job) -> str:
    ends = tables.moment(job.svc.reclaimable_at)
    return job.status.replace("_", " ") + (f", to be settled by {ends}" if ends is not None else "")


def under_way(connection: Connection, job_id: str) -> NextStep:
    where = "the job goes on without this command, and its result is kept for you"
    return NextStep(where, (connection.again("wait", job_id), connection.again("result", job_id)))


def deliver(output: Output, result: Result, place: Destination, paths: list[Path], more: dict[str, Any]) -> None:
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


@click.command()
@click.argument("job_id", help="The job's id.")
@connected
async def status(connection: Connection, job_id: str) -> None:
    """Show one job, anybody's.

    Of one that no block has yet, what each of its steps rests on.
    """
    async with connection.client() as client:
        try:
            job = await client.jobs.get(job_id)
        except NotFound as unknown:
            try:
                told = await client.jobs.progress(job_id)
            except NotFound:
                raise unknown from None
            connection.output.facts(_steps(told), wire_form(told))
            return
        chain, now = await client.chain(), client.now()
    connection.output.facts(_facts(job, chain, now), wire_form(job))


@click.command()
@click.argument("job_id", help="The job's id.")
@click.option("--timeout", "patience", type=click.FloatRange(0), help="Wait no longer than so many seconds.")
@click.option("--result", "result_cid", metavar="CID", help="Content id of a result that was shown before its block.")
@connected
async def wait(connection: Connection, job_id: str, patience: float | None, result_cid: str | None) -> Exit:
    """Wait until a job has ended.

    That is until the chain has its end. The command ends with 0 only if the job was completed. Without --timeout it
    waits as long as the job can last. With --result, which svc run shows with a provisional answer, it ends with 0 only
    if that result was settled, and says so where it was taken back.
    """
    output = connection.output
    async with connection.client() as client:
        with output.gauge() as gauge:
            job = await waited(connection, client, job_id, patience, gauge)
        chain, now = await client.chain(), client.now()
    output.facts(_facts(job, chain, now), wire_form(job))
    output.next = None
    if result_cid is not None:
        require_settled(job, result_cid)
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
        job = await _readable(client, job_id)
        if whole is not None:
            await _save(connection.output, client, job, whole)
            return
        with place.opened() as opened:
            result = await client.open(job)
            paths = opened.fill(job.id, result.output)
    deliver(connection.output, result, place, paths, in_json(result.cost_parts))


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


async def _readable(client: Client, job_id: str) -> Job:
    """Raises ResultUnreadable (`no_result`) for a job that no block has yet, PostRefused for one that none will."""
    try:
        return await client.jobs.get(job_id)
    except NotFound as unknown:
        try:
            require_posted(await client.jobs.progress(job_id))
        except NotFound:
            raise unknown from None
    raise ResultUnreadable(f"job {job_id} is in no block yet: it has no result that could be read", code="no_result")


async def _save(output: Output, client: Client, job: Job, path: Path) -> None:
    try:
        length = await client.save(job, path)
    except OSError as error:
        raise not_writable(path, error) from None
    output.say(f"{length} bytes written to {path}")
    if output.as_json:
        output.json({"job_id": job.id, "file": str(path), "bytes": length})


def _steps(told: Progress) -> list[tuple[str, str | None]]:
    """A job before its blocks: the status that it is to have, and what each of its steps rests on."""
    rows: list[tuple[str, str | None]] = [
        ("job", told.job_id),
        ("status", f"{told.status}, provisional" if told.provisional else told.status),
    ]
    for step in told.steps:
        more = step.reason if step.reason is not None else step.result_cid
        rows.append((step.op, step.rests_on if more is None else f"{step.rests_on}: {more}"))
    return rows


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
