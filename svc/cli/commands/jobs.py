"""Commands of a posted job: status, wait, result and cancel."""

from pathlib import Path
from typing import Any, Final

import click

from svc.cli import tables
from svc.cli.connection import Connection, add_connection_options
from svc.cli.destinations import Destination, add_destination_options, not_writable_error
from svc.cli.exit_codes import ExitCode
from svc.cli.json_form import to_plain_values
from svc.cli.money import cost_json, describe_end, describe_payment_state
from svc.cli.output import NextStep, Output, ProgressBar
from svc.client import Client
from svc.core.answers import ReadableAnswer, answer_as_text, read_answer
from svc.core.windows import format_window
from svc.errors import (
    NotFound,
    PostRefused,
    ResultUnreadable,
    WaitTimedOut,
)
from svc.jobs import require_posted
from svc.progress import require_settled
from svc.records import CODE_BY_ENDED_BECAUSE, Deployment, Job, Progress
from svc.results import Result

# Timeout for the index to show a mined cancellation.
_INDEX_TIMEOUT_S: Final = 30.0
_FILE_PATH_TYPE = click.Path(path_type=Path, dir_okay=False)
NOT_POSTED: Final = NextStep("nothing was posted, and nothing is owed")


async def wait_for_end(
    connection: Connection, client: Client, job_id: str, timeout_seconds: float | None, progress_bar: ProgressBar
) -> Job:
    """Return the job once it has ended."""
    output = connection.output
    output.next_step = running_next_step(connection, job_id)
    try:
        return await client.wait(
            job_id, timeout=timeout_seconds, on_change=lambda seen: progress_bar.show(describe_progress(seen))
        )
    except PostRefused:
        output.next_step = NOT_POSTED
        raise


def describe_progress(job: Job) -> str:
    ends = tables.format_time(job.svc.reclaimable_at)
    return job.status.replace("_", " ") + (f", to be settled by {ends}" if ends is not None else "")


def running_next_step(connection: Connection, job_id: str) -> NextStep:
    """Return the next step for a job that continues without this command."""
    where = "the job continues, and its result is kept for you"
    return NextStep(where, (connection.command_line("wait", job_id), connection.command_line("result", job_id)))


def write_result(
    output: Output, result: Result, destination: Destination, paths: list[Path], extra_members: dict[str, Any]
) -> None:
    """Write the answer to standard output. With --json, write an object with the job's facts and `extra_members`."""
    members = {"job_id": result.job_id, "status": result.job.status, "usage": result.usage}
    write_output(output, result.output, destination, paths, members | extra_members)


def write_output(
    output: Output, model_output: Any, destination: Destination, paths: list[Path], members: dict[str, Any]
) -> None:
    """Write a model's output to standard output. With --json, write an object that also has `members`."""
    answer = read_answer(model_output)
    if destination.out is not None:
        output.write_note(f"written to {destination.out}")
    if answer.remark is not None and not destination.raw:
        output.write_note(answer.remark)
    if output.as_json:
        files = {"files": [str(path) for path in paths]} if paths else {}
        output.write_json(to_plain_values(members | {"output": model_output} | files))
    elif destination.out is None:
        if destination.raw or not paths or answer.text is not None:
            output.write_text(answer_as_text(model_output, ReadableAnswer() if destination.raw else answer))
        for path in paths:
            output.write_text(str(path))
    output.next_step = None


@click.command()
@click.argument("job_id", help="The job's id.")
@add_connection_options
async def status(connection: Connection, job_id: str) -> None:
    """Show any job.

    For a job that is in no block yet, shows the progress of each step.
    """
    async with connection.client() as client:
        try:
            job = await client.jobs.get(job_id)
        except NotFound as unknown:
            try:
                progress = await client.jobs.progress(job_id)
            except NotFound:
                raise unknown from None
            connection.output.show_facts(_step_facts(progress), to_plain_values(progress))
            return
        deployment, now = await client.chain(), client.now()
    connection.output.show_facts(_job_facts(job, deployment, now), to_plain_values(job))


@click.command()
@click.argument("job_id", help="The job's id.")
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(0), help="Maximum seconds to wait.")
@click.option("--result", "result_cid", metavar="CID", help="Content id of a provisional result.")
@add_connection_options
async def wait(connection: Connection, job_id: str, timeout_seconds: float | None, result_cid: str | None) -> ExitCode:
    """Wait until a job has ended.

    Waits until the job has ended on the chain. Exits with status 0 only if the job was completed. Without --timeout,
    waits as long as the job can last. With --result, exits with status 0 only if this result was settled. svc run
    prints the value of --result with a provisional answer.
    """
    output = connection.output
    async with connection.client() as client:
        with output.progress_bar() as progress_bar:
            job = await wait_for_end(connection, client, job_id, timeout_seconds, progress_bar)
        deployment, now = await client.chain(), client.now()
    output.show_facts(_job_facts(job, deployment, now), to_plain_values(job))
    output.next_step = None
    if result_cid is not None:
        require_settled(job, result_cid)
    return ExitCode.DONE if job.status == "completed" else ExitCode.NO_RESULT


@click.command("result")
@click.argument("job_id", help="The job's id.")
@add_destination_options
@click.option("--whole", type=_FILE_PATH_TYPE, help="Write the complete opened result to this file, of any size.")
@add_connection_options
async def result_(
    connection: Connection, *, job_id: str, out: Path | None, folder: Path | None, raw: bool, whole: Path | None
) -> None:
    """Show the result of one of your jobs, as svc run does.

    The result is read from the gateway. Any machine with the wallet that placed the order can open the result.
    """
    if out is not None and whole is not None:
        raise click.UsageError("use either --out or --whole, not both")
    destination = Destination(out, folder, raw)
    async with connection.client(wallet=True) as client:
        job = await _get_posted_job(client, job_id)
        if whole is not None:
            await _save_result(connection.output, client, job, whole)
            return
        with destination.open_for_writing() as destination_files:
            result = await client.open(job)
            paths = destination_files.write_answer(job.id, result.output)
    write_result(connection.output, result, destination, paths, cost_json(result.cost_parts))


@click.command()
@click.argument("job_id", help="The job's id.")
@add_connection_options
async def cancel(connection: Connection, job_id: str) -> ExitCode:
    """Cancel one of your jobs that no provider has claimed yet.

    A cancelled job costs nothing. A claimed job cannot be cancelled. Exits with status 3 if the job was already
    completed and paid.
    """
    output = connection.output
    async with connection.client(wallet=True) as client:
        cancelled = await client.cancel(job_id)
        job, deployment = await _wait_for_index(client, cancelled.job_id), await client.chain()
    end = "cancelled; the index does not show it yet" if job is None else describe_end(job, deployment)
    rows = [("job", cancelled.job_id), ("outcome", end), ("transaction", cancelled.tx_hash)]
    members = {"status": None, "ended_because": None} if job is None else _job_end_json(job)
    output.show_facts(rows, to_plain_values(cancelled) | members)
    if job is None or job.status != "completed":
        return ExitCode.DONE
    output.write_note(
        f"the job was already completed and paid; read it with {connection.command_line('result', job.id)}"
    )
    return ExitCode.REFUSED


async def _wait_for_index(client: Client, job_id: str) -> Job | None:
    """Return the job once the index shows its end, or None after a timeout."""
    try:
        return await client.wait(job_id, timeout=_INDEX_TIMEOUT_S)
    except WaitTimedOut:
        return None


def _job_end_json(job: Job) -> dict[str, object]:
    return {"status": job.status, "ended_because": CODE_BY_ENDED_BECAUSE.get(job.svc.ended_because)}


async def _get_posted_job(client: Client, job_id: str) -> Job:
    """Return a job that may have a result.

    Raises ResultUnreadable (`no_result`) if the job is in no block yet, and PostRefused if its post was rejected.
    """
    try:
        return await client.jobs.get(job_id)
    except NotFound as unknown:
        try:
            require_posted(await client.jobs.progress(job_id))
        except NotFound:
            raise unknown from None
    raise ResultUnreadable(f"job {job_id} is in no block yet and has no result", code="no_result")


async def _save_result(output: Output, client: Client, job: Job, path: Path) -> None:
    try:
        length = await client.save(job, path)
    except OSError as error:
        raise not_writable_error(path, error) from None
    output.write_note(f"{length} bytes written to {path}")
    if output.as_json:
        output.write_json({"job_id": job.id, "file": str(path), "bytes": length})


def _step_facts(progress: Progress) -> list[tuple[str, str | None]]:
    """Return the expected status of a job, and the progress of each step."""
    rows: list[tuple[str, str | None]] = [
        ("job", progress.job_id),
        ("status", f"{progress.status}, provisional" if progress.provisional else progress.status),
    ]
    for step in progress.steps:
        extra = step.reason if step.reason is not None else step.result_cid
        rows.append((step.op, step.rests_on if extra is None else f"{step.rests_on}: {extra}"))
    return rows


def _job_facts(job: Job, deployment: Deployment, now: float) -> list[tuple[str, str | None]]:
    order = job.svc
    settled = job.status == "completed"
    return [
        ("job", job.id),
        ("status", job.status),
        ("model", job.model or f"model {order.model_id}"),
        ("owner", order.owner),
        ("provider", str(order.provider_id) if order.provider_id else None),
        ("designated", str(order.designated) if order.designated else None),
        ("window", format_window(order.sla_secs)),
        ("claimed", tables.format_time(job.in_progress_at)),
        (
            "expires",
            _format_deadline(order.expires_at, now, "then no provider can claim the job")
            if job.status == "queued"
            else None,
        ),
        (
            "to be settled",
            _format_deadline(order.reclaimable_at, now, "then anyone may reclaim it, and the payment is refunded"),
        ),
        ("reclaimable", _format_block_estimate(order.reclaimable_block)),
        ("ended", tables.format_time(order.ended_at)),
        ("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units"),
        ("units", f"{order.units_in} in, {order.completion_tok if settled else order.units_out} out"),
        ("money", describe_payment_state(job, deployment)),
        ("result", job.result_cid),
    ]


def _format_block_estimate(block: int | None) -> str | None:
    return None if block is None else f"from about block {block}"


def _format_deadline(deadline: int | None, now: float, consequence: str) -> str | None:
    """Describe a deadline: the time left, the date, and what happens after the deadline."""
    if deadline is None:
        return None
    remaining = f"in {tables.format_duration(deadline - now)}" if deadline > now else "deadline passed"
    return f"{remaining} ({tables.format_time(deadline)}); {consequence}"
