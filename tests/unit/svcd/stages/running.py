"""A whole daemon in this process, with a market in memory."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Protocol

import attrs
import httpx
import trio

from common.box import SecretKey
from common.envelope import ResultBody
from common.pricing.model_input import Modality
from common.sealed_result import open_result
from common.secp256k1 import Wallet
from svcd.backends.backend import OnDelta
from svcd.backends.discount import AskRates
from svcd.backends.load_settings import SlotsSettings
from svcd.backends.settings import EchoSettings
from svcd.base.clock import Clock
from svcd.base.metrics import REGISTRY
from svcd.config import AskTable, DaemonConfig, ModelConfig
from svcd.journal.journal import JOURNAL_FILE, open_journal
from svcd.journal.work import ModelWork, WorkOutput
from svcd.run.app import Daemon
from svcd.run.dependencies import DaemonDependencies, open_dependencies
from svcd.stages.drain import Drain
from svcd.stages.health import DaemonHealth
from svcd.tabs.mailbox import FrameRoutes
from tests.support.fakes.market import BOOK, GATEWAY, URL, Market

ENDED = ("settled", "failed", "given_up", "not_claimed")


@attrs.define
class Backend:
    """Returns the input, unless the test replaces the answer."""

    act: Callable[[ModelWork], Awaitable[WorkOutput]] | None = None
    stream: Callable[[ModelWork, OnDelta], Awaitable[WorkOutput]] | None = None  # for requests of tabs
    ran: list[ModelWork] = attrs.field(factory=list)
    up: bool = True
    unknown: str | None = None  # error for an unknown model name

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput:
        self.ran.append(work)
        await trio.lowlevel.checkpoint()
        if self.stream is not None and on_delta is not None:
            return await self.stream(work, on_delta)
        if self.act is not None:
            return await self.act(work)
        return WorkOutput(work.input, 10, {"units": 10})

    async def is_up(self) -> bool:
        return self.up

    async def explain_unknown_model(self, model: str) -> str | None:
        return self.unknown


@attrs.frozen
class Running:
    market: Market
    ground: DaemonDependencies
    daemon: Daemon
    drain: Drain
    backend: Backend

    @property
    def journal_path(self) -> Path:
        return self.ground.config.state_directory / JOURNAL_FILE

    def entry(self, job: str) -> tuple[str, str | None]:
        """Return the job's state and reason in the journal."""
        with closing(sqlite3.connect(self.journal_path)) as connection:
            found = connection.execute(
                "select state, reason from jobs where job_id = ?", (bytes.fromhex(job[2:]),)
            ).fetchone()
        return found or ("", None)

    async def end_of(self, job: str) -> tuple[str, str | None]:
        """Wait until the job has ended and its slot is free. Return its journal entry."""
        await self.until(lambda: self.entry(job)[0] in ENDED and not self.ground.slots.holds(bytes.fromhex(job[2:])))
        return self.entry(job)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Poll with growing pauses. Waiting costs nothing on the virtual clock, but a poll does."""
        pause = 0.25
        with trio.fail_after(100_000):
            while not holds():
                await trio.sleep(pause)
                pause = min(10.0, pause * 1.2)

    def opened(self, job: str) -> ResultBody:
        raw = bytes.fromhex(job[2:])
        sealed = self.market.results[job]
        return ResultBody.parse(open_result(self.market.result_key, BOOK.chain_id, BOOK.job_registry, raw, sealed))


class Identity(Protocol):
    """The keys and ids of a daemon."""

    @property
    def provider(self) -> Wallet: ...

    @property
    def box(self) -> SecretKey: ...


def config_for(who: Identity, state: Path, **changed: Any) -> DaemonConfig:
    fields: dict[str, Any] = {
        "state_directory": state,
        "shutdown_grace_seconds": 60.0,
        "log_level": "info",
        "max_container_bytes": 200 * 2**20,
        "coordinator_url": URL,
        "addresses": None,
        "gateways": (GATEWAY,),
        "gateway_attempts": 3,
        "gateway_pause_seconds": 1.5,
        "wallet": who.provider,
        "box": who.box,
        "evidence_file": None,
        "metrics_host": "127.0.0.1",
        "metrics_port": 0,
        "models": (model_for("demo/text", {"text"}), model_for("demo/image", {"image"})),
    }
    return DaemonConfig(**{**fields, **changed})


def model_for(name: str, serves: set[Modality], **changed: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "name": name,
        "serves": frozenset(serves),
        "slots": 4,
        "ask": asks_of({600: AskRates(100, 200)}),
        "margin_seconds": 30.0,
        "poll_seconds": 2.0,
        "backend": EchoSettings(delay_seconds=0),
        "load": SlotsSettings(),
    }
    if "asks" in changed:
        fields["ask"] = asks_of(changed.pop("asks"))
    return ModelConfig(**{**fields, **changed})


def asks_of(rates: Mapping[int, AskRates]) -> tuple[AskTable, ...]:
    return tuple(AskTable(sla_seconds=sla, rate_in=each.rate_in, rate_out=each.rate_out) for sla, each in rates.items())


@attrs.frozen
class Started:
    """A running daemon, over any transport."""

    ground: DaemonDependencies
    daemon: Daemon
    drain: Drain


@asynccontextmanager
async def started(
    config: DaemonConfig,
    now: Callable[[], float],
    transport: httpx.AsyncBaseTransport,
    backend: Backend,
    mailbox: FrameRoutes | None = None,
) -> AsyncIterator[Started]:
    """Run a daemon. The end of the block cancels it without a shutdown, like a kill."""
    drain = Drain()
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(config.state_directory, now))
        ground = await open_dependencies(config, stack, journal, Clock(now), transport)
        served_models = {name: attrs.evolve(one, backend=backend) for name, one in ground.served_models.items()}
        ground = attrs.evolve(ground, served_models=served_models, mailbox=mailbox or ground.mailbox)
        daemon = Daemon(ground, drain, DaemonHealth(journal))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.run)
            yield Started(ground, daemon, drain)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def running(
    market: Market, state: Path, *, backend: Backend | None = None, mailbox: FrameRoutes | None = None, **changed: Any
) -> AsyncIterator[Running]:
    """Run a daemon with a market in memory."""
    backend = backend if backend is not None else Backend()
    async with started(config_for(market, state, **changed), market.now, market.transport, backend, mailbox) as one:
        yield Running(market, one.ground, one.daemon, one.drain, backend)


def count(series: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(series, labels) or 0.0
