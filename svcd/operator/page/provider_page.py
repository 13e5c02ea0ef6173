"""Serve the provider's page on the metrics port: its files, and the daemon's state as JSON.

The state is computed when a browser requests it. The journal is read through a second, read-only connection, at most
once a second. A separate task reads the market and runs the checks, at most once a minute and only after a request. A
request therefore never waits for the network, and the stages never wait for a request.
"""

import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from ipaddress import ip_address
from typing import Any, Final, NoReturn

import attrs
import structlog
import trio

from common import quotes
from common.address_book import AddressBook
from common.checks import CheckRow, check_records, wrong
from common.daemon.operators_port import TEXT_HEADERS, OperatorsResponse
from common.daemon.process import RELEASE, Fatal
from common.refusal import Refused
from common.scalars import hex_of
from common.web.files import StaticFile, page_files
from svcd.backends.breaker import Breaker
from svcd.backends.discount import Discount
from svcd.backends.load import Load
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig
from svcd.coordinator.client import MarketReader
from svcd.journal.entries import JobEntry, read_live_entries
from svcd.journal.history import DailyModelCounts, FailedJob, Standing, read_daily_counts, read_failures, read_standing
from svcd.journal.journal import JOURNAL_FILE
from svcd.journal.slots import Slots
from svcd.operator.page.idle import DaemonState, ModelState, PricePosition, idle_reasons, price_positions
from svcd.operator.page.remedies import explain_reason
from svcd.stages.health import DaemonHealth

log = structlog.get_logger(__name__)

STATE_PATH: Final = "/state.json"
_STATE_LIFETIME_S: Final = 1.0
_JOURNAL_READ_TIMEOUT_S: Final = 5.0
_MARKET_READ_INTERVAL_S: Final = 60.0
_MARKET_READ_TIMEOUT_S: Final = 90.0
_HISTORY_SHOWN_S: Final = 29 * 86_400  # today and the 29 days before
_MAX_JOBS_SHOWN: Final = 100
_MAX_FAILURES_SHOWN: Final = 20
_STEP_BY_STATE: Final = {"claiming": "claim", "claimed": "run", "sealed": "settle", "failing": "refund"}
_JSON_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)


def load_page_files() -> Mapping[str, StaticFile]:
    """Return the files of the page, by path."""
    files = {f"/{name}": file for name, file in page_files("svcd.operator.page", "static").items()}
    files["/"] = files.pop("/index.html")
    return files


@attrs.frozen(slots=True, eq=False)
class DaemonParts:
    """Parts of the running daemon that the page shows. `model_ids` grows with the catalogue."""

    coordinator: MarketReader
    address_book: AddressBook
    provider_id: int
    slots: Slots
    model_ids: Mapping[str, int]
    backends: Mapping[str, tuple[Load, Breaker, Discount]]


@attrs.frozen(slots=True)
class MarketView:
    """Latest reading of the market, and latest checks."""

    read_at: float
    checks: list[CheckRow]
    listed: bool | None = None
    reputation: int | None = None
    prices: tuple[PricePosition, ...] = ()


@attrs.frozen(slots=True)
class JournalView:
    """Content of the journal that the page shows."""

    jobs: list[JobEntry]
    days: list[DailyModelCounts]
    standing: list[Standing]
    failures: list[FailedJob]


@attrs.define(slots=True, eq=False)
class ProviderPage:
    """Page of a daemon.

    `run_checks` runs the checks of `svcd check`. `parts` is None until the coordinator responds.
    """

    config: DaemonConfig
    health: DaemonHealth
    clock: Clock
    run_checks: Callable[[], Awaitable[list[CheckRow]]]
    parts: DaemonParts | None = None
    _market: MarketView | None = None
    _requested: trio.Event = attrs.field(factory=trio.Event)
    _lock: trio.Lock = attrs.field(factory=trio.Lock)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    _state: bytes = b""
    _state_built_at: float = -_STATE_LIFETIME_S
    _started_at: float = attrs.field(factory=trio.current_time)
    _files: Mapping[str, StaticFile] = attrs.field(factory=load_page_files)

    async def get_page(self, path: str, host: str) -> OperatorsResponse | None:
        """Return a file of the page, or the state as JSON. Return None for an unknown path."""
        file = self._files.get(path)
        if file is None and path != STATE_PATH:
            return None
        if not is_own_host(host, self.config.metrics_host):
            text = f"host {host!r} is not a name of this server; open the page by IP address or as localhost\n"
            return OperatorsResponse(421, text.encode("ascii", "backslashreplace"), TEXT_HEADERS)
        if file is not None:
            return OperatorsResponse(200, file.body, file.headers)
        return OperatorsResponse(200, await self.state_json(), _JSON_HEADERS)

    async def state_json(self) -> bytes:
        """Return the state as JSON, at most a second old. Requests that arrive together share one computation."""
        self._requested.set()
        async with self._lock:
            if trio.current_time() - self._state_built_at >= _STATE_LIFETIME_S:
                self._state = json.dumps(await self._build_state()).encode()
                self._state_built_at = trio.current_time()
            return self._state

    async def run(self) -> NoReturn:
        """Read the market after a request, at most once a minute."""
        while True:
            await self._requested.wait()
            self._requested = trio.Event()
            self._market = await self._read_market()
            await trio.sleep(_MARKET_READ_INTERVAL_S)

    async def _read_market(self) -> MarketView:
        failed, parts = "", self.parts
        with trio.move_on_after(_MARKET_READ_TIMEOUT_S):
            try:
                checks = await self.run_checks()
                if parts is None:
                    return MarketView(self.clock.unix_time(), checks)
                provider = await parts.coordinator.read_provider(parts.provider_id)
                asks = await parts.coordinator.read_asks()
            except (Unavailable, Refused, Fatal) as error:
                failed = str(error)
            else:
                known = [(model, parts.model_ids.get(model.name)) for model in self.config.models]
                prices = tuple(
                    price
                    for model, model_id in known
                    if model_id is not None
                    for price in price_positions(model, model_id, parts.provider_id, asks)
                )
                return MarketView(self.clock.unix_time(), checks, provider.listed, provider.reputation, prices)
        detail = failed or f"no answer in {_MARKET_READ_TIMEOUT_S:g} s"
        return MarketView(self.clock.unix_time(), [wrong("market", detail, "check again later, or read the log")])

    async def _build_state(self) -> dict[str, Any]:
        now, parts, market = self.clock.unix_time(), self.parts, self._market
        models = self._read_models()
        daemon = DaemonState(
            connected=parts is not None,
            problem=self.health.problem,
            claim_holds=self.health.claim_holds or (),
            granted=None if parts is None else parts.slots.granted_slots,
            listed=None if market is None else market.listed,
            uptime_s=trio.current_time() - self._started_at,
            models=models,
            prices=() if market is None else market.prices,
        )
        journal = await self._read_journal_in_time(now)
        return {
            "release": RELEASE,
            "wallet": hex_of(self.config.wallet.address),
            "coordinator": self.config.coordinator_url,
            "provider_id": None if parts is None else parts.provider_id,
            "token": None if parts is None else _token_json(parts.address_book),
            "problem": daemon.problem,
            "idle": [attrs.asdict(reason) for reason in idle_reasons(daemon)],
            "slots": {
                "held": 0 if parts is None else parts.slots.held_slots,
                "configured": sum(self.config.slots.values()),
                "granted": daemon.granted,
            },
            "models": [_model_json(model, now) for model in models],
            "journal": None if journal is None else _journal_json(journal),
            "market": None if market is None else _market_json(market),
        }

    def _read_models(self) -> list[ModelState]:
        found, parts = [], self.parts
        for model in self.config.models:
            if parts is None:
                found.append(ModelState(model.name, False, model.slots, 0, 0, None, 0, False, 0, None))
                continue
            load, breaker, discount = parts.backends[model.name]
            found.append(
                ModelState(
                    name=model.name,
                    offered=model.name in parts.model_ids,
                    slots=model.slots,
                    held=parts.slots.held_for(model.name),
                    free=parts.slots.free(model.name),
                    load=load.latest_reading,
                    discount_percent=discount.percent,
                    circuit_open=breaker.is_open,
                    next_probe_s=breaker.backoff_s,
                    seconds_since_orders=self.health.seconds_since_orders(model.name),
                )
            )
        return found

    async def _read_journal_in_time(self, now: float) -> JournalView | None:
        """Read the journal in a thread. Return None if the read fails or takes too long."""
        with trio.move_on_after(_JOURNAL_READ_TIMEOUT_S):
            try:
                return await trio.to_thread.run_sync(
                    self._read_journal, now, abandon_on_cancel=True, limiter=self._limiter
                )
            except (sqlite3.DatabaseError, OSError) as failed:
                log.warning("journal not read for the page", reason=str(failed))
        return None

    def _read_journal(self, now: float) -> JournalView:
        path = self.config.state_directory / JOURNAL_FILE
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1)) as connection:
            since = now - _HISTORY_SHOWN_S
            return JournalView(
                read_live_entries(connection, _MAX_JOBS_SHOWN),
                read_daily_counts(connection, since),
                read_standing(connection, since),
                read_failures(connection, _MAX_FAILURES_SHOWN),
            )


def _token_json(book: AddressBook) -> dict[str, object]:
    return {"name": book.token_domain.name, "decimals": book.payment_token_decimals}


def _model_json(model: ModelState, now: float) -> dict[str, object]:
    """Return the model's fields. Times are in Unix seconds, so that the JSON changes only if something happens."""
    fields = attrs.asdict(model)
    del fields["next_probe_s"], fields["seconds_since_orders"]
    fields["load"] = None if model.load is None else round(model.load, 2)
    fields["last_orders_at"] = None if model.seconds_since_orders is None else round(now - model.seconds_since_orders)
    return fields


def _journal_json(journal: JournalView) -> dict[str, object]:
    jobs = sorted((_job_json(entry) for entry in journal.jobs), key=lambda job: job["deadline"])
    failures = [
        {"job_id": hex_of(failure.job_id), "model": failure.model, "reason": failure.reason, "at": failure.at}
        | dict(zip(("cause", "remedy"), explain_reason(failure.reason), strict=True))
        for failure in journal.failures
    ]
    return {
        "jobs": jobs,
        "days": [attrs.asdict(day) | {"earned": str(day.earned)} for day in journal.days],
        "standing": [attrs.asdict(change) for change in journal.standing],
        "failures": failures,
    }


def _job_json(entry: JobEntry) -> dict[str, Any]:
    job = entry.job
    claimed_at = job.claimed_at or entry.claim_sent_at
    return {
        "job_id": hex_of(job.job_id),
        "model": entry.model,
        "step": _STEP_BY_STATE[entry.state],
        "claimed_at": claimed_at,
        "deadline": claimed_at + job.sla_secs,
        "at_most": str(quotes.cap(job.rate_in, job.rate_out, job.units_in, job.units_out)),
    }


def _market_json(market: MarketView) -> dict[str, object]:
    prices = [
        {name: value if isinstance(value, str) or value is None else str(value) for name, value in price.items()}
        for price in map(attrs.asdict, market.prices)
    ]
    return {
        "read_at": market.read_at,
        "checks": check_records(market.checks),
        "listed": market.listed,
        "reputation": market.reputation,
        "prices": prices,
    }


def is_own_host(host: str, configured_host: str) -> bool:
    """Return True for an IP address, localhost or the configured name. Other names may come from DNS rebinding.

    >>> [is_own_host(host, "gpu-box") for host in ("127.0.0.1:9403", "[::1]:9403", "gpu-box:9403", "evil.example")]
    [True, True, True, False]
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", configured_host.lower()):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
