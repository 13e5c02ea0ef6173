"""A complete svcd over a simulated coordinator, chain, gateway, model server and disk, from one plan.

    seed ─► plan ─► posts, faults ─► market ◄── requests ── svcd (real) ──► disk
                └─► kills ─► svcd dies ─► surviving disk ─► svcd starts again

Time is virtual and jumps when every task waits. `tests.simulation.determinism` controls the other sources of chance. A
run is over when every job has ended, long after the last fault. Promises are checked at each step and at the end.
"""

import logging
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import attrs
import structlog
import trio
from trio.testing import MockClock

from common.bundle import BundleItem, bundle_input
from common.envelope import Envelope
from svcd.backends.backend import OnDelta
from svcd.backends.discount import AskRates
from svcd.base.end_reasons import WorkFailed
from svcd.config import DaemonConfig
from svcd.journal import journal, result_files
from svcd.journal.work import ModelWork, WorkOutput
from tests.simulation.daemon import GRACE_S, DaemonLives, small_rows
from tests.simulation.determinism import seeded
from tests.simulation.disk import Disk, empty_folder
from tests.simulation.market import SimulatedMarket
from tests.simulation.plan import Plan, Post, planned
from tests.simulation.promises import AHEAD, Promises
from tests.simulation.tabs import SimulatedMailbox, owner_of
from tests.simulation.trace import Trace
from tests.unit.svcd.stages.running import Backend, config_for, model_for

_QUIET_TIMEOUT_S: Final = 3000.0  # virtual, after the last fault, for all work to end
_WINDOWS: Final = (120, 600)


@attrs.frozen
class Outcome:
    plan: Plan
    broken: tuple[str, ...]
    trace: str
    seconds: float  # virtual
    jobs: int
    ahead: int  # runs before their job's block
    lives: int
    faults: int
    lines: tuple[str, ...] = attrs.field(repr=False)


def simulate(plan: Plan) -> Outcome:
    """Run the plan and return the outcome."""
    with empty_folder() as folder, _quiet():
        provider = _Provider(plan, folder)
        with seeded(plan.seed, provider.moment), provider.disk.watched(), small_rows(), _disk_full(provider):
            return trio.run(provider.live, clock=MockClock(autojump_threshold=0))


def simulate_seed(seed: int) -> Outcome:
    return simulate(planned(seed))


class _Provider:
    """State of one run."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._chance = random.Random(f"provider {plan.seed}")
        self.disk = Disk(folder, random.Random(f"disk {plan.seed}"))
        self._trace = Trace(trio.current_time)
        self.market = SimulatedMarket(plan, self._trace, moment=self.moment, arrives=self._arrives)
        self._promises = Promises(self.market, self.disk)
        self._mailbox = SimulatedMailbox(plan.seed, plan.noisy, self.moment)
        self._lives = DaemonLives(
            self.market,
            self._promises,
            self.disk,
            self._trace,
            kills=list(plan.kills),
            config=self._config,
            backend=Backend(self._work, self._request),
            chance=self._chance,
            mailbox=self._mailbox,
        )

    async def live(self) -> Outcome:
        async with trio.open_nursery() as world:
            self.market.world = world
            world.start_soon(self.market.reclaim)
            world.start_soon(self.market.weather)
            for post in self._plan.posts:
                world.start_soon(self._post, post)
            world.start_soon(self._watch_end)
            await self._lives.live()
            world.cancel_scope.cancel()
        return Outcome(
            self._plan,
            tuple(self._promises.broken),
            self._trace.digest,
            trio.current_time(),
            len(self.market.jobs) + len(self.market.refused_posts),
            self._promises.ran_ahead,
            self.market.life,
            self.market.faults_met,
            tuple(self._trace.lines),
        )

    def _config(self, state: Path) -> DaemonConfig:
        asks = {window: AskRates(100, 200) for window in _WINDOWS}
        models = (model_for("demo/text", {"text"}, asks=asks, poll_seconds=6.0, ahead=AHEAD),)
        return config_for(self.market, state, models=models, shutdown_grace_seconds=GRACE_S)

    def moment(self, what: str) -> None:
        self._lives.moment(what)

    # --- events ---------------------------------------------------------------------------------------------

    async def _post(self, post: Post) -> None:
        await trio.sleep(post.at)
        if post.requests:
            await self._tab(post)
            return
        if post.items:
            self._bundle(post)
            return
        text = (f"question {len(self._promises.asked)} " * (1 + post.length // 11))[: max(post.length, 12)]
        envelope: Envelope = self.market.envelope({"input": text})
        recipient = self.market.escrow.public if post.is_bid else self.market.box.public
        terms: dict[str, Any] = {"sla_secs": str(post.window), "units_in": "20000"}
        if post.is_bid:
            terms["designated"] = "0"
        job = self.market.post(self.market.container(envelope.encode(), recipient), **terms)
        self.market.named(job)
        self._promises.asked[job], self._promises.is_bid[job] = text, post.is_bid
        if post.block_in:
            await self.market.offer_until(job, post.block_in, refused=post.refused)
        self.market.note()

    async def _tab(self, post: Post) -> None:
        number = 1000 * (self._plan.seed + 1) + len(self._promises.tabs)
        owner = owner_of(self.market, self._mailbox, post.requests, number, self._promises.breaks)
        owner.delegated_until = int(self.market.now()) + 10**6
        job = owner.post(sla_secs=str(post.window))
        self.market.named(job)
        self._promises.tabs[job], self._promises.is_bid[job] = owner, False
        self.market.note()
        await owner.live()

    def _bundle(self, post: Post) -> None:
        texts = [f"item {post.at} {number}" for number in range(post.items)]
        envelope = self.market.envelope(bundle_input([BundleItem({"input": text}) for text in texts]))
        job = self.market.post(
            self.market.container(envelope.encode()), sla_secs=str(post.window), units_in="1", units_out="1000000"
        )
        self.market.named(job)
        self._promises.items[job], self._promises.is_bid[job] = texts, False
        self.market.note()

    async def _request(self, work: ModelWork, on_delta: OnDelta) -> WorkOutput:
        """Answer a request of a tab in pieces."""
        assert work.item_number is not None
        self._trace.add(f"{self.market.named('0x' + work.job_id.hex())} runs request {work.item_number}")
        owner = self._promises.request_runs(work.job_id, work.item_number)
        fault = self.market.due("run")
        for _ in range(self._chance.randrange(1, 6)):
            on_delta({"of": owner.text(work.item_number)})
            await trio.sleep(self._chance.uniform(0, 2) + (fault.seconds / 5 if fault is not None else 0))
        if fault is not None and fault.kind == "exhausted":
            raise WorkFailed("backend_exhausted", "as planned", backend_fault=True)
        if fault is not None and fault.kind == "crash":
            raise RuntimeError("as planned")
        return WorkOutput(work.input, 10 + self._chance.randrange(5), {"units": 10})

    async def _work(self, work: ModelWork) -> WorkOutput:
        if work.item_number is not None:
            await trio.sleep(self._chance.uniform(0, 10))
            return WorkOutput(work.input, 10, {"units": 10})
        self._trace.add(f"{self.market.named('0x' + work.job_id.hex())} runs")
        is_ahead = "0x" + work.job_id.hex() in self.market.undecided
        self._promises.runs_now(work.job_id, is_ahead=is_ahead)
        fault = self.market.due("run")
        await trio.sleep(self._chance.uniform(0, 30) + (fault.seconds if fault is not None else 0))
        if fault is not None and fault.kind == "exhausted":
            raise WorkFailed("backend_exhausted", "as planned", backend_fault=True)
        if fault is not None and fault.kind == "crash":
            raise RuntimeError("as planned")
        return WorkOutput(work.input, 10 + self._chance.randrange(5), {"units": 10})

    def _arrives(self, name: str, request: Any) -> None:
        self._promises.arrives(name, request)

    # --- the end ------------------------------------------------------------------------------------------

    async def _watch_end(self) -> None:
        await trio.sleep(self._plan.noisy + 20)
        quiet_from = self.market.now()
        last = max([0.0, *(post.at for post in self._plan.posts)])
        with trio.move_on_after(_QUIET_TIMEOUT_S):
            while trio.current_time() < last + 1 or not self._at_rest():  # noqa: ASYNC110 - virtual seconds
                await trio.sleep(5)
        await trio.sleep(35)  # finished jobs stay finished: compare the journal with the chain again
        await self._lives.until_running()
        self._promises.judge(self._lives.held, self.market.life + 1, quiet_from)
        self._lives.end()

    def _at_rest(self) -> bool:
        return self._promises.at_rest(self._lives.held)


@contextmanager
def _disk_full(provider: _Provider) -> Iterator[None]:
    """Refuse commits and file writes while the disk is full."""
    commit, store = journal._commit, result_files.ResultFiles.store

    def refusing_commit(connection: sqlite3.Connection, statements: list[Any]) -> list[int]:
        if provider.market.disk_is_full:
            raise sqlite3.OperationalError("database or disk is full")
        return commit(connection, statements)

    def refusing_store(files: result_files.ResultFiles, job_id: bytes, result: bytes) -> None:
        if provider.market.disk_is_full:
            raise OSError("no space left on device")
        store(files, job_id, result)

    with (
        patch.object(journal, "_commit", refusing_commit),
        patch.object(result_files.ResultFiles, "store", refusing_store),
    ):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.reset_defaults()
