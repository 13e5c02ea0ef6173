"""`svc watch`: the market on a terminal: the book, your jobs, models, providers and the deployment, drawn anew."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import attrs
import click

from svc.cli import tables
from svc.cli.connection import Connection, connected
from svc.cli.drawing import Screen, Table
from svc.cli.json_form import wire_form
from svc.cli.key_presses import pressed_keys
from svc.client import Client
from svc.core.money import in_token
from svc.core.windows import window_words
from svc.errors import ApiError, ConnectionFailed, SvcError
from svc.records import LIVE_JOB, Ask, BookRow, Deployment, Floor, Model, Provider, Readiness
from svc.wire.events import ToldChanges, changes_of, unauthorised

PANES: Final = ("book", "jobs", "models", "providers", "market")
_OF_JOBS: Final = ("book", "jobs", "providers")  # panes that change when jobs do
_QUIET: Final = 10.0  # seconds between looks while changes are told and there are none: time goes on, too
_CLOSEST: Final = 0.5  # seconds between looks, however much is told
_ROWS: Final = 200
_FOLLOWED: Final = 8  # open jobs of the wallet that are asked for ahead of their blocks
_KEYS: Final = "tab next  1-5 choose  r look again  q quit"
_NO_WALLET: Final = "no wallet is set: SVC_WALLET_KEY_FILE names one, and its jobs are shown here"


@attrs.frozen
class MarketLook:
    """What was read at one time: of the pane that is shown, and of the head line."""

    ready: Readiness
    chain: Deployment
    names: dict[int, str]
    table: Table
    data: Any  # the same in the words of the interface


@click.command()
@click.option("--pane", type=click.Choice(PANES), default="book", help="The one to begin with, or to write in a pipe.")
@click.option("--once", is_flag=True, help="Look once and end, on a terminal too.")
@click.option(
    "--every", type=click.FloatRange(0.2), default=2.0, help="Seconds between looks where no changes are told."
)
@connected
async def watch(connection: Connection, *, pane: str, once: bool, every: float) -> None:
    """Watch the market: the book, your jobs, models, providers, and the deployment.

    On a terminal it fills the screen until q is pressed: tab and the arrows turn to the next pane, 1 to 5 choose one,
    r looks at once. Jobs are looked at when the coordinator tells of a change, all else every --every seconds. In a
    pipe, with --json or with --once it writes one pane and ends.
    """
    output = connection.output
    async with connection.client(wallet=None) as client:
        if once or not output.to_terminal:
            look = await read_pane(client, pane, brief=False)
            output.table(look.table, look.data)
            return
        with output.screen() as draw:
            await _Watching(client, draw, every, PANES.index(pane)).run()


@attrs.define
class _Watching:
    """A terminal that is drawn anew when a look is over or a key is pressed; it looks when a change is told, too."""

    client: Client
    draw: Callable[[Screen], None]
    every: float
    at: int
    look: MarketLook | None = None
    trouble: str | None = None
    failure: SvcError | None = None
    wanted: anyio.Event = attrs.field(factory=anyio.Event)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_until_failure, tasks.cancel_scope)
            async with aclosing(pressed_keys()) as keys:  # the terminal is given back before anything else is done
                async for key in keys:
                    if key in ("q", "Q", "\x03"):
                        break
                    self._turn(key)
            tasks.cancel_scope.cancel()
        if self.failure is not None:  # raised here: a task group would wrap it
            raise self.failure

    def _turn(self, key: str) -> None:
        if key in ("\t", "\x1b[C"):
            self.at = (self.at + 1) % len(PANES)
        elif key in ("\x1b[Z", "\x1b[D"):
            self.at = (self.at - 1) % len(PANES)
        elif key in ("1", "2", "3", "4", "5"):
            self.at = int(key) - 1
        elif key not in ("r", "R"):
            return
        self.look = None if key not in ("r", "R") else self.look
        self._show()
        self.wanted.set()

    async def _look_until_failure(self, watching: anyio.CancelScope) -> None:
        try:
            await self._look_again_and_again()
        except SvcError as failed:
            self.failure = failed
            watching.cancel()

    async def _look_again_and_again(self) -> None:
        while True:
            pane = PANES[self.at]
            of_wallet = pane == "jobs" and self.client.signer is not None
            path = f"/evm/events?owner={self.client.address}" if of_wallet else "/evm/events"
            async with changes_of(self.client.jobs.account.transport, path, unauthorised) as changes:
                if pane in _OF_JOBS:
                    changes.listen()
                while pane == PANES[self.at]:
                    self.wanted = anyio.Event()
                    await self._look(pane)
                    await self._until_worth_a_look(changes)

    async def _look(self, pane: str) -> None:
        try:
            look = await read_pane(self.client, pane, brief=True)
        except (ApiError, ConnectionFailed) as failed:
            if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                raise
            self.trouble = failed.message
        else:
            self.trouble = None
            if pane == PANES[self.at]:  # else somebody has turned the page meanwhile
                self.look = look
        self._show()

    async def _until_worth_a_look(self, changes: ToldChanges) -> None:
        """Until a key asks for one, a change was told, or it is time: later where changes are told than where not."""
        async with anyio.create_task_group() as tasks:

            async def due() -> None:
                looked = anyio.current_time()
                await changes.pause(self.every, max(self.every, _QUIET))
                await anyio.sleep_until(looked + min(self.every, _CLOSEST))
                tasks.cancel_scope.cancel()

            tasks.start_soon(due)
            await self.wanted.wait()
            tasks.cancel_scope.cancel()

    def _show(self) -> None:
        self.draw(Screen(PANES, self.at, self._status(), None if self.look is None else self.look.table, _KEYS))

    def _status(self) -> str:
        if self.trouble is not None:
            return f"reconnecting: {self.trouble}"
        if self.look is None:
            return "reading"
        block = f"block {self.look.ready.cursor}"
        return f"live, {block}" if self.look.ready.ready else f"not ready ({self.look.ready.reason}), {block}"


async def read_pane(client: Client, pane: str, *, brief: bool) -> MarketLook:
    """One look. `brief`: as wide as a terminal, without what is only good for copying."""
    ready, chain = await client.readiness(), await client.told_deployment()
    listed = await client.models.list(limit=None)
    names = {model.svc.model_id: model.id for model in listed}
    table, data = await _pane(client, pane, (ready, chain, listed, names), brief=brief)
    return MarketLook(ready, chain, names, table, data)


async def _pane(
    client: Client, pane: str, known: tuple[Readiness, Deployment, list[Model], dict[int, str]], *, brief: bool
) -> tuple[Table, Any]:
    ready, chain, listed, names = known
    if pane in ("book", "jobs"):
        if pane == "jobs" and client.signer is None:
            return Table(("jobs",), [(_NO_WALLET,)]), []
        owner = client.address if pane == "jobs" else None
        rows = await client.jobs.book(owner=owner, order="newest", limit=_ROWS)
        if not brief:
            return tables.jobs(rows, names, time.time()), wire_form(rows)
        ahead = await _ahead_of_blocks(client, rows) if pane == "jobs" else {}
        return brief_jobs(rows, names, chain, time.time(), ahead), wire_form(rows)
    if pane == "models":
        floors, asks = await client.market.floors(limit=None), await client.market.asks(limit=None)
        return model_prices(listed, floors, asks, chain), wire_form(listed)
    if pane == "providers":
        providers = await client.market.providers(limit=None)
        return (brief_providers(providers, names) if brief else tables.providers(providers, names)), wire_form(
            providers
        )
    return deployment_facts(ready, chain), wire_form(chain)


async def _ahead_of_blocks(client: Client, rows: Sequence[BookRow]) -> dict[str, str]:
    """Statuses of the newest open jobs that no block has yet, with what they rest on."""
    found: dict[str, str] = {}

    async def look(job_id: str) -> None:
        try:
            told = await client.jobs.progress(job_id)
        except (ApiError, ConnectionFailed):  # the book's is shown
            return
        if told.provisional and told.steps:
            found[job_id] = f"{told.status} ({told.steps[-1].rests_on})"

    going_on = [row.job_id for row in rows if tables.status_of(row) in LIVE_JOB]
    if client.jobs.account.tells_progress is not False:
        async with anyio.create_task_group() as tasks:
            for job_id in going_on[:_FOLLOWED]:
                tasks.start_soon(look, job_id)
    return found


def brief_jobs(
    rows: Sequence[BookRow], names: dict[int, str], chain: Deployment, now: float, ahead: Mapping[str, str]
) -> Table:
    """The book with what a person follows: how far each job is, and how long it has left."""
    drawn = [
        (
            f"{row.job_id[:10]}…{row.job_id[-4:]}",
            tables.name_of(row.model_id, names),
            ahead.get(row.job_id) or tables.status_of(row),
            str(row.provider_id or row.designated or "") or None,
            in_token(-(-(row.rate_in * row.units_in + row.rate_out * row.units_out) // 10**6), chain.decimals),
            _left(row, now),
        )
        for row in rows
    ]
    return Table(("job", "model", "status", "provider", "at most", "left"), drawn, frozenset({"provider", "at most"}))


def _left(row: BookRow, now: float) -> str | None:
    if tables.status_of(row) not in LIVE_JOB:
        return None
    ends = row.expires_at if row.claimed_at == 0 else row.claimed_at + row.sla_secs
    left = max(0, round(ends - now))
    hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
    return f"{hours}:{minutes:02}:{seconds:02}"


def model_prices(listed: Sequence[Model], floors: Sequence[Floor], asks: Sequence[Ask], chain: Deployment) -> Table:
    """Models with the lowest prices asked for them now, in tokens for a million units."""
    rows = []
    for model in listed:
        mine = [floor for floor in floors if floor.model_id == model.svc.model_id]
        askers = {ask.provider_id for ask in asks if ask.model_id == model.svc.model_id}
        rows.append(
            (
                model.id,
                "yes" if model.svc.enabled else "no",
                in_token(min(floor.rate_in for floor in mine), chain.decimals) if mine else None,
                in_token(min(floor.rate_out for floor in mine), chain.decimals) if mine else None,
                str(len(askers)),
                ", ".join(window_words(floor.sla) for floor in mine) or None,
            )
        )
    columns = ("model", "enabled", "in from", "out from", "providers", "windows")
    return Table(columns, rows, frozenset({"in from", "out from", "providers"}))


def brief_providers(listed: Sequence[Provider], names: dict[int, str]) -> Table:
    rows = [
        (
            str(one.provider_id),
            "yes" if one.listed else "no",
            f"{one.active_jobs}/{one.capacity}",
            str(one.reputation),
            "all" if one.allow_all_models else ", ".join(tables.name_of(each, names) for each in one.allowed_models),
        )
        for one in listed
    ]
    return Table(("provider", "listed", "busy", "reputation", "models"), rows, frozenset({"busy", "reputation"}))


def deployment_facts(ready: Readiness, chain: Deployment) -> Table:
    windows = ", ".join(window_words(each) for each in chain.windows) if chain.windows else None
    rows = [
        ("index", f"{'ready' if ready.ready else ready.reason}, block {ready.cursor}, {ready.lag} behind the head"),
        ("chain", str(chain.chain_id)),
        ("payment token", f"{chain.token_domain.name}, {chain.decimals} decimals, {chain.contracts.paytoken}"),
        ("market's fee", f"{chain.fee_bps / 100:g} %"),
        ("windows", windows),
        ("job registry", chain.contracts.job_registry),
        ("provider registry", chain.contracts.provider_registry),
        ("ask registry", chain.contracts.ask_registry),
    ]
    return Table(("deployment", "value"), rows)
