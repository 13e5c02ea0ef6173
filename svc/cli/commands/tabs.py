"""Commands `svc tab`: conversations in one job."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import click

from common import quotes
from common.quotes import CostParts
from svc.cli.ceiling import pay_within_ceiling
from svc.cli.connection import Connection, add_connection_options
from svc.cli.drawing import Table
from svc.cli.exit_codes import ExitCode
from svc.cli.inputs import read_param
from svc.cli.json_form import to_plain_values
from svc.cli.line_input import LineInput
from svc.cli.money import cost_json, format_amount
from svc.cli.output import NextStep, Output, ProgressBar
from svc.client import Client
from svc.core.answers import answer_as_text, read_answer
from svc.core.tabs import first_choice_text
from svc.core.windows import WINDOW_FORMS, WINDOW_NOT_ALLOWED, is_valid_window
from svc.errors import OrderRefused, TabEnded, TabFaulty, TabRequestFailed
from svc.records import Deployment, Model
from svc.tabs.files import TabFile
from svc.tabs.outcome import TabOutcome
from svc.tabs.tab import Tab, TabReply
from svc.tabs.tabs import DEFAULT_REQUESTS, DEFAULT_WINDOW, TabOptions

_RESPONSES_ENDPOINT: Final = "/v1/responses"
_NOT_POSTED: Final = NextStep("nothing was posted, and nothing is owed")
_JOB_ARGUMENT = click.argument("job_id", metavar="JOB", help="Id of the tab's job.")


@click.group()
def tab() -> None:
    """Chat with a model in one job, which is settled once.

    \b
      svc tab open demo/chat                     a chat; Ctrl-D ends and settles it
      svc tab open demo/chat < questions.txt     one request per line
      svc run demo/chat "Why?" --tab             one request in an open tab

    Requests and answers are sealed between you and the provider. Each request carries your signed allowance, and you
    owe only for answers that you received. The provider could still charge up to the tab's cap. Therefore the cap is
    small, and a provider that charged too much gets no further tab. The settle refunds the rest.

    A tab without requests is settled by its provider after a minute.
    """


@tab.command("open")
@click.argument("model", help="Name of a model (see svc models).")
@click.option("--provider", type=click.IntRange(1, 2**32 - 1), help="Use this provider only.")
@click.option("--window", "-w", default=DEFAULT_WINDOW, help=f"Longest duration: {WINDOW_FORMS}.")
@click.option(
    "--requests",
    type=click.IntRange(1, 10_000),
    default=DEFAULT_REQUESTS,
    help="Cap, in answers of the default maximum length.",
)
@click.option("--units-out", type=click.IntRange(1, 2**32 - 1), help="Cap in units of output.")
@click.option("--max-amount", type=click.IntRange(1), help="Highest amount in base units.  [env: SVC_MAX_AMOUNT]")
@click.option("--system", metavar="TEXT", help="Instruction for the model, sent with each request.")
@click.option("--param", "-p", "params", metavar="NAME=VALUE", multiple=True, help="Set a parameter of the model.")
@click.option("--no-chat", is_flag=True, help="Open the tab, write its job id, and leave it open.")
@add_connection_options
async def open_(
    connection: Connection,
    *,
    model: str,
    provider: int | None,
    window: str,
    requests: int,
    units_out: int | None,
    max_amount: int | None,
    system: str | None,
    params: tuple[str, ...],
    no_chat: bool,
) -> ExitCode:
    """Open a tab and chat in it.

    Each line is a request with the whole conversation so far. Each answer appears as the model writes it, followed by
    its cost and the total so far. When the cap is used up, or the provider has ended the tab, the next request opens
    another tab. Ctrl-D ends the chat, and shows the settle and the refund.
    """
    output = connection.output
    _check_window(window)
    output.next_step = _NOT_POSTED
    options = TabOptions(
        provider=provider, window=window, requests=requests, units_out=units_out, max_amount=max_amount
    )
    async with connection.client(wallet=True) as client:
        client.require_gateway()
        deployment, listed = await client.chain(), await client.models.get(model)
        opener = TabOpener(connection, client, deployment, model, options)
        if no_chat:
            await opener.leave_open()
            return ExitCode.DONE
        chat = _Chat(output, deployment, _Conversation(listed, system, dict(read_param(param) for param in params)))
        await chat.run(opener)
        return ExitCode.DONE


@attrs.define
class TabOpener:
    """Opens tabs of one model. The amount of a tab may not exceed the ceiling."""

    connection: Connection
    client: Client
    deployment: Deployment
    model: str
    options: TabOptions

    async def run(self, use_tab: Callable[[Tab], Any]) -> Any:
        """Open a tab, and call `use_tab` with the tab. The tab is then settled, unless `use_tab` keeps it open."""
        output = self.connection.output
        with output.progress_bar() as progress:
            progress.show("opening a tab")
            return await pay_within_ceiling(
                output, progress, self.options.get("max_amount"), lambda ceiling: self._open(ceiling, progress, use_tab)
            )

    async def leave_open(self) -> None:
        output = self.connection.output

        async def keep(opened: Tab) -> str:
            opened.keep()
            return opened.id

        job_id = await self.run(keep)
        output.next_step = None
        if output.as_json:
            output.write_json({"job_id": job_id})
        else:
            output.write_text(job_id)
        output.write_note("the tab is settled after a minute without requests; close it with")
        output.write_note(f"  {self.connection.command_line('tab', 'close', job_id)}")

    async def _open(self, ceiling: int | None, progress: ProgressBar, use_tab: Callable[[Tab], Any]) -> Any:
        output, terms = self.connection.output, TabOptions(**{**self.options, "max_amount": ceiling})
        async with self.client.tabs.open(self.model, **terms) as opened:
            output.next_step = self.close_next_step(opened.id)
            progress.stop()
            output.write_note(
                f"tab {opened.id} with provider {opened.provider}:"
                f" at most {format_amount(opened.file.amount, self.deployment)}"
            )
            result = await use_tab(opened)
        self.report_outcome(opened)
        return result

    def close_next_step(self, job_id: str) -> NextStep:
        close = self.connection.command_line("tab", "close", job_id)
        return NextStep("the tab is settled when it is idle; settle and check it now with", (close,))

    def report_outcome(self, ended: Tab) -> None:
        output = self.connection.output
        if ended.outcome is None:
            return
        output.next_step = None
        show_outcome(output, ended.file, ended.outcome, self.deployment)


@attrs.define
class _Conversation:
    """Messages of a chat so far. Builds requests in the form that the model's route expects."""

    model: Model
    system: str | None
    params: dict[str, Any]
    messages: list[dict[str, Any]] = attrs.field(factory=list)

    def build_request(self, question: str) -> dict[str, Any]:
        messages = [*self.messages, {"role": "user", "content": question}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        key = "input" if self.model.svc.endpoint in (_RESPONSES_ENDPOINT, None) else "messages"
        return {key: messages, **self.params}

    def add(self, question: str, answer: str) -> None:
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@attrs.define
class _Chat:
    """Interactive chat. `cost` is the total cost so far."""

    output: Output
    deployment: Deployment
    conversation: _Conversation
    lines: LineInput = attrs.field(factory=LineInput)
    cost: int = 0
    question: str | None = None  # the line that is not answered yet; None at the end of the input

    async def run(self, opener: TabOpener) -> None:
        """Answer lines until the input ends. Open another tab for a request that the last tab refused."""
        await self._read_question()
        while self.question is not None:
            await opener.run(self._answer_questions)

    async def _answer_questions(self, opened: Tab) -> None:
        """Answer questions in this tab, until the tab ends, the tab is full, or the input ends."""
        answered = 0
        while self.question is not None:
            try:
                await self._answer(opened, self.question)
            except TabRequestFailed as failed:
                self.output.warn(failed.message)
            except TabFaulty:
                raise
            except TabEnded as ended:
                if not answered and ended.code in {"tab_full", "request_too_large"}:
                    raise
                self.output.write_note(f"{ended.message}; the next request opens another tab")
                return
            answered += 1
            await self._read_question()

    async def _read_question(self) -> None:
        self.question = ""
        while self.question is not None and not self.question.strip():
            if self.output.is_on_terminal:
                self.output.write_partial_text("> ")
            self.question = await self.lines.read_line()
        if self.question is None and self.output.is_on_terminal:
            self.output.write_partial_text("\n")

    async def _answer(self, opened: Tab, question: str) -> None:
        stream = await opened.request(self.conversation.build_request(question))
        shown = ""
        async for chunk in stream:
            text = first_choice_text(chunk)
            shown += text
            if text and not self.output.as_json:
                self.output.write_partial_text(text)
        reply = await stream.answer()
        text = read_answer(reply.output).text or shown or answer_as_text(reply.output, read_answer(reply.output))
        self.conversation.add(question, text)
        cost = reply_cost(opened.file, reply)
        self.cost += cost
        if self.output.as_json:
            self.output.write_json_line(to_plain_values(_reply_json(opened, reply, cost)))
            self.output.flush()
            return
        self.output.write_text("" if shown else text)
        self.output.flush()
        self.output.write_note(
            f"[{format_amount(cost, self.deployment)}; {format_amount(self.cost, self.deployment)} so far]"
        )


def reply_cost(file: TabFile, reply: TabReply) -> int:
    """Return the cost of an answer, protocol fee included. The relay charge is added only once per tab."""
    return quotes.cost_parts(reply.cost, attrs.evolve(file.fee_terms, gas_fee=0)).total


def _reply_json(opened: Tab, reply: TabReply, cost: int) -> dict[str, Any]:
    return {
        "job_id": opened.id,
        "request": reply.id,
        "output": reply.output,
        "usage": reply.usage,
        "units": reply.units,
        "cost": cost,
    }


def show_outcome(output: Output, file: TabFile, outcome: TabOutcome, deployment: Deployment) -> None:
    """Show how a tab ended, on standard error because answers go to standard output. With --json, write one object."""
    if output.as_json:
        money = cost_json(outcome.cost_parts) | {"authorised": file.amount, "returned": outcome.returned}
        members = {"job_id": file.id, "status": outcome.job.status, "closed": outcome.closed}
        units = {"requests": outcome.requests, "charged": outcome.charged, "acknowledged": outcome.acknowledged}
        output.write_json_line(to_plain_values(members | units | money | {"fault": outcome.fault}))
        return
    output.write_note(f"tab {file.id}: {describe_outcome(outcome, deployment)}")
    if outcome.fault is not None:
        charge = "the provider charged only what was acknowledged"
        output.warn(f"provider {file.provider} gets no further tab: {outcome.fault}; {charge}")


def describe_outcome(outcome: TabOutcome, deployment: Deployment) -> str:
    returned = format_amount(outcome.returned, deployment)
    parts: CostParts | None = outcome.cost_parts
    if outcome.job.status != "completed":
        return f"ended without a settle ({outcome.closed.replace('_', ' ')}); {returned} refunded"
    if parts is None:
        return f"settled for {outcome.requests} answers"
    provider, fees = format_amount(parts.provider, deployment), format_amount(parts.fee + parts.gas_fee, deployment)
    paid = format_amount(parts.total, deployment)
    return (
        f"settled for {outcome.requests} answers: paid {paid} (provider {provider}, fees {fees}); {returned} refunded"
    )


@tab.command("list")
@add_connection_options
async def list_(connection: Connection) -> None:
    """List open tabs and excluded providers."""
    output = connection.output
    async with connection.client(wallet=True) as client:
        found, faulty, deployment = await client.tabs.list(), await client.tabs.faulty_providers(), await client.chain()
    rows = []
    for each in found:
        units = f"{each.acknowledged}/{each.file.units_out}"
        status = "unknown" if each.job is None else each.job.status.replace("_", " ")
        amount = format_amount(each.file.amount, deployment)
        rows.append((each.file.id, each.file.model, str(each.file.provider), status, units, amount))
    table = Table(
        ("job", "model", "provider", "status", "units", "authorised"), rows, frozenset({"provider"}), frozenset({"job"})
    )
    tabs = [dict(zip(table.columns, row, strict=True)) for row in rows]
    output.show_table(table, {"tabs": tabs, "faulty": {str(provider): why for provider, why in faulty.items()}})
    for provider, why in faulty.items():
        output.warn(f"provider {provider} gets no further tab: {why}")
    if any(each.job is not None and each.job.ended for each in found):
        output.write_note("check an ended tab, and remove it from this list, with svc tab close JOB")


@tab.command()
@_JOB_ARGUMENT
@add_connection_options
async def close(connection: Connection, job_id: str) -> None:
    """Settle a tab, check the charge, and show the refund."""
    async with connection.client(wallet=True) as client:
        deployment = await client.chain()
        file = next((each.file for each in await client.tabs.list() if each.file.id == job_id.lower()), None)
        outcome = await client.tabs.close(job_id)
    if file is None:
        raise AssertionError("a tab without a file cannot have been closed")
    show_outcome(connection.output, file, outcome, deployment)


@tab.command()
@click.argument("provider", type=click.IntRange(1, 2**32 - 1), help="Id of the provider.")
@add_connection_options
async def forgive(connection: Connection, provider: int) -> None:
    """Allow tabs with an excluded provider again."""
    async with connection.client(wallet=True) as client:
        known = await client.tabs.forgive(provider)
    connection.output.write_note(f"provider {provider} {'may get tabs again' if known else 'was not excluded'}")


async def send_in_tab(
    connection: Connection, client: Client, model: str, model_input: Mapping[str, Any], options: TabOptions
) -> tuple[Tab, TabReply]:
    """Send one request in an open tab of this model, or in a new one. Leave the tab open."""
    output, deployment = connection.output, await client.chain()

    async def send(opened: Tab) -> tuple[Tab, TabReply]:
        reply = await (await opened.request(model_input)).answer()
        opened.keep()
        return opened, reply

    for each in await client.tabs.list():
        if (
            each.file.model != model
            or each.job is None
            or options.get("provider", each.file.provider) != each.file.provider
        ):
            continue
        if each.job.ended:
            show_outcome(output, each.file, await client.tabs.close(each.file.id), deployment)
            continue
        try:
            async with client.tabs.resume(each.file.id) as opened:
                return await send(opened)
        except TabFaulty:
            raise
        except (TabEnded, OrderRefused) as unusable:
            if isinstance(unusable, OrderRefused) and unusable.code not in {"in_use", "unknown_tab"}:
                raise
            output.write_note(unusable.message)
    opener = TabOpener(connection, client, deployment, model, options)
    found: tuple[Tab, TabReply] = await opener.run(send)
    return found


def _check_window(window: str) -> None:
    if not is_valid_window(window):
        raise OrderRefused(
            f"--window {window} is not supported: use {WINDOW_FORMS}", code=WINDOW_NOT_ALLOWED, param="window"
        )
