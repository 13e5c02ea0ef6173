"""Command `svc watch`: a live view of the market on a terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import attrs
import click

from svc.cli import tables
from svc.cli.connection import Connection, add_connection_options
from svc.cli.drawing import Screen, Table
from svc.cli.json_form import to_plain_values
from svc.cli.key_presses import read_key_presses
from svc.client import Client
from svc.core.money import format_token_amount
from svc.core.windows import format_window
from svc.errors import ApiError, ConnectionFailed, SvcError
from svc.records import LIVE_JOB_STATUSES, Ask, BookRow, Deployment, Floor, Model, Provider, Readiness
from svc.wire.events import ChangeListener, call_without_session, open_change_listener

PANES: Final = ("book", "jobs", "models", "providers", "market")
_JOB_PANES: Final = ("book", "jobs", "providers")  # panes that are refreshed when a job changes
# Refresh interval while the event stream is open but silent.
_IDLE_REFRESH_INTERVAL_S: Final = 10.0
_MIN_REFRESH_INTERVAL_S: Final = 0.5
_MAX_ROWS: Final = 200
_MAX_FOLLOWED_JOBS: Final = 8  # provisional statuses are shown for this many open jobs
_KEYS_HELP: Final = "tab next  1-5 choose  r refresh  q quit"
_NO_WALLET_TEXT: Final = "no wallet: set SVC_WALLET_KEY_FILE to see your jobs here"


@attrs.frozen
class PaneData:
    """Data of the visible pane and of the status line."""

    readiness: Readiness
    deployment: Deployment
    model_names: dict[int, str]
    table: Table
    data: Any  # the table's content for --json


@click.command()
@click.option("--pane", type=click.Choice(PANES), default="book", help="Pane to show first, or to write to a pipe.")
@click.option("--once", is_flag=True, help="Write the pane once and end, also on a terminal.")
@click.option(
    "--every",
    type=click.FloatRange(0.2),
    default=2.0,
    help="Seconds between reads, if no changes are reported.",
)
@add_connection_options
async def watch(connection: Connection, *, pane: str, once: bool, every: float) -> None:
    """Watch the book, your jobs, models, providers and deployment.

    On a terminal, fills the screen until q is pressed: tab and the arrow keys change the pane, 1 to 5 choose one, r
    refreshes. Jobs are refreshed when the coordinator reports a change. Everything else is refreshed every --every
    seconds. In a pipe, with --json or with --once, writes one pane and ends.
    """
    output = connection.output
    async with connection.client(wallet=None) as client:
        if once or not output.is_on_terminal:
            pane_data = await load_pane(client, pane, brief=False)
            output.show_table(pane_data.table, pane_data.data)
            return
        with output.full_screen() as draw:
            await _WatchScreen(client, draw, every, PANES.index(pane)).run()


@attrs.define
class _WatchScreen:
    """Screen that is redrawn after a refresh or a key press. Changes of jobs cause a refresh."""

    client: Client
    draw: Callable[[Screen], None]
    interval_seconds: float
    pane_index: int
    pane_data: PaneData | None = None
    error_message: str | None = None
    failure: SvcError | None = None
    refresh_requested: anyio.Event = attrs.field(factory=anyio.Event)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._refresh_until_error, tasks.cancel_scope)
            async with aclosing(read_key_presses()) as keys:  # closing restores the terminal
                async for key in keys:
                    if key in ("q", "Q", "\x03"):
                        break
                    self._handle_key(key)
            tasks.cancel_scope.cancel()
        if self.failure is not None:  # a task group would wrap the error
            raise self.failure

    def _handle_key(self, key: str) -> None:
        if key in ("\t", "\x1b[C"):
            self.pane_index = (self.pane_index + 1) % len(PANES)
        elif key in ("\x1b[Z", "\x1b[D"):
            self.pane_index = (self.pane_index - 1) % len(PANES)
        elif key in ("1", "2", "3", "4", "5"):
            self.pane_index = int(key) - 1
        elif key not in ("r", "R"):
            return
        self.pane_data = None if key not in ("r", "R") else self.pane_data
        self._draw()
        self.refresh_requested.set()

    async def _refresh_until_error(self, scope: anyio.CancelScope) -> None:
        try:
            await self._refresh_forever()
        except SvcError as failed:
            self.failure = failed
            scope.cancel()

    async def _refresh_forever(self) -> None:
        while True:
            pane = PANES[self.pane_index]
            wallet_only = pane == "jobs" and self.client.signer is not None
            path = f"/evm/events?owner={self.client.address}" if wallet_only else "/evm/events"
            async with open_change_listener(self.client.jobs.account.transport, path, call_without_session) as changes:
                if pane in _JOB_PANES:
                    changes.listen()
                while pane == PANES[self.pane_index]:
                    self.refresh_requested = anyio.Event()
                    await self._refresh(pane)
                    await self._wait_for_refresh(changes)

    async def _refresh(self, pane: str) -> None:
        try:
            pane_data = await load_pane(self.client, pane, brief=True)
        except (ApiError, ConnectionFailed) as failed:
            if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                raise
            self.error_message = failed.message
        else:
            self.error_message = None
            if pane == PANES[self.pane_index]:  # the user may have changed the pane
                self.pane_data = pane_data
        self._draw()

    async def _wait_for_refresh(self, changes: ChangeListener) -> None:
        """Wait for a key press, a reported change or the refresh interval."""
        async with anyio.create_task_group() as tasks:

            async def refresh_when_due() -> None:
                started = anyio.current_time()
                await changes.pause(self.interval_seconds, max(self.interval_seconds, _IDLE_REFRESH_INTERVAL_S))
                await anyio.sleep_until(started + min(self.interval_seconds, _MIN_REFRESH_INTERVAL_S))
                tasks.cancel_scope.cancel()

            tasks.start_soon(refresh_when_due)
            await self.refresh_requested.wait()
            tasks.cancel_scope.cancel()

    def _draw(self) -> None:
        self.draw(
            Screen(
                PANES,
                self.pane_index,
                self._status_line(),
                None if self.pane_data is None else self.pane_data.table,
                _KEYS_HELP,
            )
        )

    def _status_line(self) -> str:
        if self.error_message is not None:
            return f"reconnecting: {self.error_message}"
        if self.pane_data is None:
            return "reading"
        block = f"block {self.pane_data.readiness.cursor}"
        return (
            f"live, {block}"
            if self.pane_data.readiness.ready
            else f"not ready ({self.pane_data.readiness.reason}), {block}"
        )


async def load_pane(client: Client, pane: str, *, brief: bool) -> PaneData:
    """Read the data of a pane. `brief` leaves out columns that are only useful for copying."""
    readiness, deployment = await client.readiness(), await client.reported_deployment()
    listed = await client.models.list(limit=None)
    model_names = {model.svc.model_id: model.id for model in listed}
    table, data = await _read_pane(client, pane, (readiness, deployment, listed, model_names), brief=brief)
    return PaneData(readiness, deployment, model_names, table, data)


async def _read_pane(
    client: Client, pane: str, market_data: tuple[Readiness, Deployment, list[Model], dict[int, str]], *, brief: bool
) -> tuple[Table, Any]:
    readiness, deployment, listed, model_names = market_data
    if pane in ("book", "jobs"):
        if pane == "jobs" and client.signer is None:
            return Table(("jobs",), [(_NO_WALLET_TEXT,)]), []
        owner = client.address if pane == "jobs" else None
        rows = await client.jobs.book(owner=owner, order="newest", limit=_MAX_ROWS)
        if not brief:
            return tables.jobs_table(rows, model_names, time.time()), to_plain_values(rows)
        provisional_statuses = await _read_provisional_statuses(client, rows) if pane == "jobs" else {}
        return short_jobs_table(rows, model_names, deployment, time.time(), provisional_statuses), to_plain_values(rows)
    if pane == "models":
        floors, asks = await client.market.floors(limit=None), await client.market.asks(limit=None)
        return model_prices_table(listed, floors, asks, deployment), to_plain_values(listed)
    if pane == "providers":
        providers = await client.market.providers(limit=None)
        return (
            short_providers_table(providers, model_names) if brief else tables.providers_table(providers, model_names)
        ), to_plain_values(providers)
    return deployment_table(readiness, deployment), to_plain_values(deployment)


async def _read_provisional_statuses(client: Client, rows: Sequence[BookRow]) -> dict[str, str]:
    """Return the provisional statuses of the newest running jobs, with the state of their last step."""
    statuses: dict[str, str] = {}

    async def read_status(job_id: str) -> None:
        try:
            progress = await client.jobs.progress(job_id)
        except (ApiError, ConnectionFailed):  # the status of the index is shown instead
            return
        if progress.provisional and progress.steps:
            statuses[job_id] = f"{progress.status} ({progress.steps[-1].rests_on})"

    running = [row.job_id for row in rows if tables.job_status(row) in LIVE_JOB_STATUSES]
    if client.jobs.account.supports_progress is not False:
        async with anyio.create_task_group() as tasks:
            for job_id in running[:_MAX_FOLLOWED_JOBS]:
                tasks.start_soon(read_status, job_id)
    return statuses


def short_jobs_table(
    rows: Sequence[BookRow],
    model_names: dict[int, str],
    deployment: Deployment,
    now: float,
    provisional_statuses: Mapping[str, str],
) -> Table:
    """Return a table of jobs that is narrow enough for the screen."""
    cells = [
        (
            f"{row.job_id[:10]}…{row.job_id[-4:]}",
            tables.model_name_of(row.model_id, model_names),
            provisional_statuses.get(row.job_id) or tables.job_status(row),
            str(row.provider_id or row.designated or "") or None,
            format_token_amount(
                -(-(row.rate_in * row.units_in + row.rate_out * row.units_out) // 10**6), deployment.decimals
            ),
            _time_left(row, now),
        )
        for row in rows
    ]
    return Table(("job", "model", "status", "provider", "at most", "left"), cells, frozenset({"provider", "at most"}))


def _time_left(row: BookRow, now: float) -> str | None:
    if tables.job_status(row) not in LIVE_JOB_STATUSES:
        return None
    ends = row.expires_at if row.claimed_at == 0 else row.claimed_at + row.sla_secs
    left = max(0, round(ends - now))
    hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
    return f"{hours}:{minutes:02}:{seconds:02}"


def model_prices_table(
    listed: Sequence[Model], floors: Sequence[Floor], asks: Sequence[Ask], deployment: Deployment
) -> Table:
    """Return the models with their lowest asks, in tokens per million units."""
    rows = []
    for model in listed:
        model_floors = [floor for floor in floors if floor.model_id == model.svc.model_id]
        ask_providers = {ask.provider_id for ask in asks if ask.model_id == model.svc.model_id}
        rows.append(
            (
                model.id,
                "yes" if model.svc.enabled else "no",
                format_token_amount(min(floor.rate_in for floor in model_floors), deployment.decimals)
                if model_floors
                else None,
                format_token_amount(min(floor.rate_out for floor in model_floors), deployment.decimals)
                if model_floors
                else None,
                str(len(ask_providers)),
                ", ".join(format_window(floor.sla) for floor in model_floors) or None,
            )
        )
    columns = ("model", "enabled", "in from", "out from", "providers", "windows")
    return Table(columns, rows, frozenset({"in from", "out from", "providers"}))


def short_providers_table(listed: Sequence[Provider], model_names: dict[int, str]) -> Table:
    rows = [
        (
            str(provider.provider_id),
            "yes" if provider.listed else "no",
            f"{provider.active_jobs}/{provider.capacity}",
            str(provider.reputation),
            "all"
            if provider.allow_all_models
            else ", ".join(tables.model_name_of(each, model_names) for each in provider.allowed_models),
        )
        for provider in listed
    ]
    return Table(("provider", "listed", "busy", "reputation", "models"), rows, frozenset({"busy", "reputation"}))


def deployment_table(readiness: Readiness, deployment: Deployment) -> Table:
    windows = ", ".join(format_window(each) for each in deployment.windows) if deployment.windows else None
    status = "ready" if readiness.ready else readiness.reason
    rows = [
        ("index", f"{status} at block {readiness.cursor}; blocks behind the chain: {readiness.lag}"),
        ("chain", str(deployment.chain_id)),
        (
            "payment token",
            f"{deployment.token_domain.name}, {deployment.decimals} decimals, {deployment.contracts.paytoken}",
        ),
        ("market's fee", f"{deployment.fee_bps / 100:g} %"),
        ("windows", windows),
        ("job registry", deployment.contracts.job_registry),
        ("provider registry", deployment.contracts.provider_registry),
        ("ask registry", deployment.contracts.ask_registry),
    ]
    return Table(("deployment", "value"), rows)
