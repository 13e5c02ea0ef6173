"""The composition root. Nurseries nest in the order of shutdown: what stands inside ends first.

journal, clients, backends     closed last
  background                   signals, metrics, watchdog, breakers, capacity
    commitments                claimer, opener, runners, sealer, uploader, settler, failer, reconciler
      intake                   pollers and asks; told first, ends first
"""

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeVar

import attrs
import structlog
import trio

from common.daemon.process import RELEASE, Systemd
from common.messages.providers import Ask
from svcd import metrics
from svcd.backends.backend import watch
from svcd.configuration.config import DaemonConfig
from svcd.dependencies import DaemonDependencies, Equipment, prepare
from svcd.health import DaemonHealth, serve_metrics
from svcd.journal.journal import open_journal
from svcd.stages.ahead import AheadLimits
from svcd.stages.asks import AskPublisher, Capacity, Catalogue
from svcd.stages.claimer import Claimer, Lookup
from svcd.stages.guard import Guard
from svcd.stages.offers import DeadlineChannel, Exclusions, Offer, OfferCheck
from svcd.stages.opener import PayloadOpener
from svcd.stages.pipeline import Drain, Pipeline
from svcd.stages.poller import Poller
from svcd.stages.reconciler import Reconciler
from svcd.stages.runner import Runner, SealStage
from svcd.stages.settler import Failer, Settler, Uploader
from svcd.timings import Clock, Timings

log = structlog.get_logger(__name__)
T = TypeVar("T")

_MOST_WORKERS: Final = 256  # of a stage that waits for the network: an op, for the block that takes it
_LAST_SECONDS: Final = 15.0  # of the shutdown's grace: for failing what could not be finished


async def run(config: DaemonConfig) -> None:
    """The daemon, until SIGTERM or SIGINT; a second one ends the process at once."""
    systemd, drain, clock = Systemd(), Drain(), Clock()
    metrics.start_at_zero(config.slots)
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(config.state_directory, clock.wall))
        async with trio.open_nursery() as background:
            health = DaemonHealth(journal)
            await background.start(_watch_signals, drain)
            if config.metrics_port:
                await background.start(serve_metrics, config.metrics_host, config.metrics_port, health)
            background.start_soon(systemd.keep_alive)
            background.start_soon(journal.keep_small)
            background.start_soon(health.watch)
            # Ready to be supervised: a coordinator that is away is waited for, and is no reason to be restarted.
            systemd.say("READY=1", "STATUS=waiting for the coordinator")
            ground = await _unless_stopped(drain, lambda: prepare(config, stack, journal, clock))
            if ground is not None:
                systemd.say("STATUS=working")
                await Daemon(ground, drain, health).work(lambda: systemd.say("STOPPING=1"))
            background.cancel_scope.cancel()
    log.info("stopped")


@attrs.frozen(slots=True, eq=False)
class Daemon:
    """The stages over their ground."""

    ground: DaemonDependencies
    drain: Drain
    health: DaemonHealth
    timings: Timings = attrs.field(factory=Timings)

    async def work(self, stopping: Callable[[], None] = lambda: None) -> None:
        """From the first poll to the last job's end. `stopping` is called when it begins to stop."""
        ground = self.ground
        exclusions = Exclusions(ground.clock)
        exclusions.remember(await ground.journal.failed_before())
        pipeline = Pipeline.of(ground.journal, exclusions, ground.config.slots)
        offers = DeadlineChannel[Offer](min(ground.slots.capacity, _MOST_WORKERS))
        asks = AskPublisher(ground.coordinator, ground.signer, ground.provider_id, ground.journal)
        guard = self._guard()
        async with trio.open_nursery() as commitments:
            await self._start_commitments(commitments, pipeline, offers, guard)
            await _unless_stopped(self.drain, guard.at_start)
            commitments.start_soon(guard.run)
            async with trio.open_nursery() as intake:

                def begin(model: str) -> None:
                    one = ground.equipment[model]
                    asks.want(self._asks_of(one))
                    self.health.expect(model, one.config.poll_seconds)
                    intake.start_soon(self._poller(one, exclusions, offers).run)

                for model in ground.offered:
                    begin(model)
                intake.start_soon(asks.run)
                intake.start_soon(Catalogue(ground.coordinator, ground.equipment, ground.model_ids, begin).run)
                log.info("working", release=RELEASE, provider_id=ground.provider_id, models=sorted(ground.offered))
                await self.drain.begun.wait()
                stopping()
                log.info("stopping", held=ground.slots.held, grace_seconds=ground.config.shutdown_grace_seconds)
                intake.cancel_scope.cancel()
            for offer in offers.drain():
                offer.slot.give_back()
            await self._finish(asks)
            commitments.cancel_scope.cancel()

    async def _start_commitments(
        self, nursery: trio.Nursery, pipeline: Pipeline, offers: DeadlineChannel[Offer], guard: Guard
    ) -> None:
        """Returns when the jobs that an earlier run held are on their way."""
        ground, timings, drain = self.ground, self.timings, self.drain
        coordinator, signer, clock = ground.coordinator, ground.signer, ground.clock
        lookup = Lookup(coordinator, clock, ground.provider_id)
        limits = AheadLimits({one.name: one.ahead for one in ground.config.models if one.ahead}, ground.journal)
        claimer = Claimer(
            coordinator, signer, clock, ground.provider_id, pipeline, offers, timings, self.health, limits
        )
        uploader = Uploader(coordinator, lookup, pipeline)
        sealer = SealStage(ground.deployment, pipeline)
        settler = Settler(coordinator, signer, clock, lookup, timings, pipeline)
        failer = Failer(coordinator, signer, clock, lookup, pipeline)
        opener = self._opener(pipeline)
        for _ in range(min(ground.slots.capacity, _MOST_WORKERS)):
            nursery.start_soon(claimer.serve)
            nursery.start_soon(pipeline.serve, pipeline.to_open, opener.step)
            nursery.start_soon(pipeline.serve, pipeline.to_settle, settler.step)
            nursery.start_soon(pipeline.serve, pipeline.to_fail, failer.step)
        for _ in range(os.cpu_count() or 1):
            nursery.start_soon(pipeline.serve, pipeline.to_seal, sealer.step)
            nursery.start_soon(pipeline.serve, pipeline.to_upload, uploader.step)
        for name, one in ground.equipment.items():
            runner = Runner(name, one.backend, one.breaker, timings, pipeline, drain)
            nursery.start_soon(watch, one.breaker, one.backend, name)
            for _ in range(one.config.slots):
                nursery.start_soon(pipeline.serve, pipeline.to_run[name], runner.step)
        nursery.start_soon(Capacity(coordinator, signer, ground.provider_id, ground.slots, ground.journal).run)
        reconciler = Reconciler(
            *(coordinator, clock, ground.provider_id, ground.model_ids, ground.slots, pipeline),
            claimed_by_another=guard.claimed_by_another,
        )
        await _unless_stopped(drain, reconciler.at_start)
        nursery.start_soon(reconciler.run)

    def _guard(self) -> Guard:
        ground = self.ground
        return Guard(
            coordinator=ground.coordinator,
            chain=ground.chain,
            clock=ground.clock,
            health=self.health,
            provider_id=ground.provider_id,
            box=ground.config.box,
            models={name: (one.config, one.backend) for name, one in ground.equipment.items()},
        )

    def _opener(self, pipeline: Pipeline) -> PayloadOpener:
        ground = self.ground
        return PayloadOpener(
            coordinator=ground.coordinator,
            signer=ground.signer,
            clock=ground.clock,
            deployment=ground.deployment,
            provider_id=ground.provider_id,
            box=ground.config.box,
            gateways=ground.gateways,
            models={model.name: model for model in ground.config.models},
            spool_directory=ground.config.state_directory,
            max_container_bytes=ground.config.max_container_bytes,
            timings=self.timings,
            pipeline=pipeline,
            drain=self.drain,
            chain=ground.chain,
        )

    def _poller(self, one: Equipment, exclusions: Exclusions, offers: DeadlineChannel[Offer]) -> Poller:
        ground = self.ground
        return Poller(
            model=one.config,
            model_id=ground.model_ids[one.config.name],
            provider_id=ground.provider_id,
            has_box_key=ground.config.box is not None,
            coordinator=ground.coordinator,
            clock=ground.clock,
            slots=ground.slots,
            load=one.load,
            discount=one.discount,
            breaker=one.breaker,
            exclusions=exclusions,
            timings=self.timings,
            offers=offers,
            check=OfferCheck(ground.deployment, ground.chain),
            health=self.health,
        )

    def _asks_of(self, one: Equipment) -> list[Ask]:
        model_id = self.ground.model_ids[one.config.name]
        return [Ask(model_id, sla, rates.rate_in, rates.rate_out) for sla, rates in one.config.asks.items()]

    async def _finish(self, asks: AskPublisher) -> None:
        """What is held is finished within the grace, or failed in the last of it; what is left is in the journal."""
        slots, grace = self.ground.slots, self.ground.config.shutdown_grace_seconds
        with trio.move_on_after(grace):
            async with trio.open_nursery() as last:
                last.start_soon(asks.withdraw)
                with trio.move_on_after(max(grace / 2, grace - _LAST_SECONDS)):
                    await slots.until_empty()
                self.drain.cut()
                await slots.until_empty()
        if slots.held:
            log.warning("stopped with jobs in hand: the next start goes on with them", held=slots.held)


async def _unless_stopped(drain: Drain, act: Callable[[], Awaitable[T]]) -> T | None:
    """None when the daemon was told to stop first."""
    result = None
    async with trio.open_nursery() as nursery:

        async def watching() -> None:
            await drain.begun.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watching)
        result = await act()
        nursery.cancel_scope.cancel()
    return result


async def _watch_signals(drain: Drain, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if drain.stopping:
                log.warning("told twice to stop: ending at once", signal=signal.Signals(number).name)
                os._exit(1)  # the journal makes it safe: the next start finds every job where this one left it
            drain.begin()
