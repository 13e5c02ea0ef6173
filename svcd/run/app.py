"""Compose and run the daemon. Nurseries nest in the order of shutdown, so the innermost ends first.

journal, clients, backends     closed last
  background                   signals, metrics, watchdog, breakers, capacity
    commitments                claimer, opener, runners, sealer, uploader, settler, failer, reconciler
      intake                   pollers and asks; stopped first
"""

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

import attrs
import structlog
import trio

from common.daemon.operators_port import bind_operators_port
from common.daemon.process import RELEASE
from common.daemon.supervision import Loop
from common.daemon.systemd import Systemd
from common.messages.providers import Ask
from svcd.backends.breaker import watch
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.timings import Timings
from svcd.config import DaemonConfig
from svcd.journal.journal import Journal, open_journal
from svcd.run.dependencies import DaemonDependencies, ServedModel, prepare
from svcd.stages.ahead import AheadLimits
from svcd.stages.asks import AskPublisher
from svcd.stages.capacity import Capacity
from svcd.stages.catalogue import Catalogue
from svcd.stages.claimer import Claimer
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.drain import Drain
from svcd.stages.failer import Failer
from svcd.stages.guard import Guard
from svcd.stages.health import DaemonHealth, serve_metrics
from svcd.stages.offer_check import OfferCheck
from svcd.stages.offers import Exclusions, Offer
from svcd.stages.op_lookup import Lookup
from svcd.stages.opener import PayloadOpener
from svcd.stages.pipeline import Pipeline
from svcd.stages.poller import Poller
from svcd.stages.reconciler import Reconciler
from svcd.stages.runner import Runner
from svcd.stages.sealer import SealStage
from svcd.stages.settler import Settler
from svcd.stages.turns import Turns
from svcd.stages.uploader import Uploader

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Per stage that waits for the network, such as for an op's block.
_MAX_STAGE_WORKERS: Final = 256
# End of the grace period, in which unfinished jobs are failed.
_FAIL_JOBS_S: Final = 15.0


async def run(config: DaemonConfig) -> None:
    """Run the daemon until SIGTERM or SIGINT. A second signal ends the process at once."""
    systemd, drain, clock = Systemd(), Drain(), Clock()
    metrics.start_at_zero(config.slots)
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(config.state_directory, clock.wall))
        health = DaemonHealth(journal)
        loops: dict[str, Loop] = {
            "watchdog": systemd.keep_alive,
            "journal_cleanup": journal.keep_small,
            "health": health.watch,
        }
        if config.metrics_port:
            port = bind_operators_port(config.metrics_host, config.metrics_port, "metrics.host, metrics.port")
            loops["metrics"] = partial(serve_metrics, health, stack.enter_context(port))
        async with trio.open_nursery() as background:
            await background.start(_watch_signals, drain)
            for name, loop in loops.items():
                background.start_soon(health.supervisor.run, name, loop)
            # Report ready before the coordinator answers: an unreachable coordinator must not cause restarts.
            systemd.say("READY=1", "STATUS=waiting for the coordinator")
            prepared = partial(_prepared, config, stack, journal, clock)
            ground = await _unless_stopped(drain, partial(health.supervisor.run, "preparation", prepared))
            if ground is not None:
                systemd.say("STATUS=working")
                await Daemon(ground, drain, health).work(lambda: systemd.say("STOPPING=1"))
            background.cancel_scope.cancel()
    log.info("stopped")


async def _prepared(config: DaemonConfig, stack: AsyncExitStack, journal: Journal, clock: Clock) -> DaemonDependencies:
    """Prepare the dependencies. On failure, close what was opened so that a retry is possible."""
    async with AsyncExitStack() as opened:
        ground = await prepare(config, opened, journal, clock)
        stack.push_async_exit(opened.pop_all())
    return ground


@attrs.frozen(slots=True, eq=False)
class Daemon:
    """Daemon with its stages."""

    ground: DaemonDependencies
    drain: Drain
    health: DaemonHealth
    timings: Timings = attrs.field(factory=Timings)

    async def work(self, stopping: Callable[[], None] = lambda: None) -> None:
        """Work from the first poll to the last job's end. `stopping` is called when the shutdown begins."""
        ground = self.ground
        exclusions = Exclusions(ground.clock)
        exclusions.remember(await ground.journal.failed_before())
        pipeline = Pipeline.of(ground.journal, exclusions, ground.config.slots)
        offers = DeadlineChannel[Offer](min(ground.slots.capacity, _MAX_STAGE_WORKERS))
        asks = AskPublisher(ground.coordinator, ground.signer, ground.provider_id, ground.journal, self.health)
        guard = self._guard()
        supervise = self.health.supervisor.run
        async with trio.open_nursery() as commitments:
            await self._start_commitments(commitments, pipeline, offers, guard)
            await _unless_stopped(self.drain, partial(supervise, "guard", guard.at_start))
            commitments.start_soon(supervise, "guard", guard.run)
            async with trio.open_nursery() as intake:

                def begin(model: str) -> None:
                    one = ground.equipment[model]
                    asks.want(self._asks_of(one))
                    self.health.expect(model, one.config.poll_seconds)
                    intake.start_soon(supervise, f"poller:{model}", self._poller(one, exclusions, offers).run)

                for model in ground.offered:
                    begin(model)
                catalogue = Catalogue(ground.coordinator, ground.equipment, ground.model_ids, begin)
                intake.start_soon(supervise, "asks", asks.run)
                intake.start_soon(supervise, "catalogue", catalogue.run)
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
        """Start the stages. Return once the jobs of an earlier run are resumed."""
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
        capacity = Capacity(coordinator, signer, ground.provider_id, ground.slots, ground.journal)
        reconciler = Reconciler(
            *(coordinator, clock, ground.provider_id, ground.model_ids, ground.slots, pipeline),
            claimed_by_another=guard.claimed_by_another,
        )
        waiting, computing = min(ground.slots.capacity, _MAX_STAGE_WORKERS), os.cpu_count() or 1
        workers: list[tuple[str, int, Loop]] = [
            ("claimer", waiting, claimer.serve),
            ("opener", waiting, partial(pipeline.serve, pipeline.to_open, opener.step)),
            ("settler", waiting, partial(pipeline.serve, pipeline.to_settle, settler.step)),
            ("failer", waiting, partial(pipeline.serve, pipeline.to_fail, failer.step)),
            ("sealer", computing, partial(pipeline.serve, pipeline.to_seal, sealer.step)),
            ("uploader", computing, partial(pipeline.serve, pipeline.to_upload, uploader.step)),
            ("capacity", 1, capacity.run),
        ]
        for name, one in ground.equipment.items():
            turns = Turns(one.config.slots)
            runner = Runner(name, one.backend, one.breaker, timings, pipeline, drain, turns, ground.config.box)
            run_jobs = partial(pipeline.serve, pipeline.to_run[name], runner.step)
            workers.append((f"runner:{name}", one.config.slots, run_jobs))
            workers.append((f"breaker:{name}", 1, partial(watch, one.breaker, one.backend, name)))
        supervise = self.health.supervisor.run
        for task, count, loop in workers:
            for _ in range(count):
                nursery.start_soon(supervise, task, loop)
        await _unless_stopped(drain, partial(supervise, "reconciler", reconciler.at_start))
        nursery.start_soon(supervise, "reconciler", reconciler.run)

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

    def _poller(self, one: ServedModel, exclusions: Exclusions, offers: DeadlineChannel[Offer]) -> Poller:
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

    def _asks_of(self, one: ServedModel) -> list[Ask]:
        model_id = self.ground.model_ids[one.config.name]
        return [Ask(model_id, sla, rates.rate_in, rates.rate_out) for sla, rates in one.config.asks.items()]

    async def _finish(self, asks: AskPublisher) -> None:
        """Finish held jobs within the grace period, and fail the rest near its end. The journal keeps the remainder."""
        slots, grace = self.ground.slots, self.ground.config.shutdown_grace_seconds
        with trio.move_on_after(grace):
            async with trio.open_nursery() as last:
                last.start_soon(self.health.supervisor.run, "asks", asks.withdraw)
                with trio.move_on_after(max(grace / 2, grace - _FAIL_JOBS_S)):
                    await slots.until_empty()
                self.drain.cut()
                await slots.until_empty()
        if slots.held:
            log.warning("stopped with held jobs", held=slots.held)


async def _unless_stopped(drain: Drain, act: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of `act`, or None if the daemon is stopped first."""
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
                log.warning("stop forced", signal=signal.Signals(number).name)
                os._exit(1)  # safe, because the next start resumes every job from the journal
            drain.begin()
