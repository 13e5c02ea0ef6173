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
from common.daemon.supervision import TaskFunction
from common.daemon.systemd import Systemd
from common.messages.providers import Ask
from svcd.backends.breaker import probe_while_open
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.timings import Timings
from svcd.config import DaemonConfig
from svcd.journal.journal import Journal, open_journal
from svcd.operator.check import run_checks
from svcd.operator.page.provider_page import DaemonParts, ProviderPage
from svcd.run.dependencies import DaemonDependencies, ServedModel, open_dependencies
from svcd.stages.ahead import AheadLimits
from svcd.stages.asks import AskPublisher
from svcd.stages.capacity import CapacityUpdater
from svcd.stages.catalogue import CatalogueWatcher
from svcd.stages.claimer import Claimer
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.drain import Drain
from svcd.stages.failer import Failer
from svcd.stages.guard import Guard
from svcd.stages.health import DaemonHealth, serve_metrics
from svcd.stages.job_lookup import JobLookup
from svcd.stages.offer_check import OfferChecker
from svcd.stages.offers import Exclusions, Offer
from svcd.stages.opener import PayloadOpener
from svcd.stages.pipeline import Pipeline
from svcd.stages.poller import Poller
from svcd.stages.reconciler import Reconciler
from svcd.stages.runner import Runner
from svcd.stages.sealer import SealStage
from svcd.stages.settler import Settler
from svcd.stages.turns import Turns
from svcd.stages.uploader import Uploader
from svcd.tabs.service import TabService

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MAX_STAGE_WORKERS: Final = 256  # for each stage that waits for the network
_FAIL_PHASE_S: Final = 15.0  # last part of the grace period, in which svcd fails unfinished jobs


async def run(config: DaemonConfig) -> None:
    """Run the daemon until SIGTERM or SIGINT. A second signal ends the process at once."""
    systemd, drain, clock = Systemd(), Drain(), Clock()
    metrics.create_series_at_zero(config.slots)
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(config.state_directory, clock.unix_time))
        health = DaemonHealth(journal)
        loops: dict[str, TaskFunction] = {
            "watchdog": systemd.feed_watchdog,
            "journal_cleanup": journal.run_cleanup,
            "health": health.watch,
        }
        page = ProviderPage(config, health, clock, partial(run_checks, config))
        if config.metrics_port:
            port = bind_operators_port(config.metrics_host, config.metrics_port, "metrics.host, metrics.port")
            loops["metrics"] = partial(serve_metrics, health, stack.enter_context(port), page.get_page)
            loops["page"] = page.run
        async with trio.open_nursery() as background:
            await background.start(_watch_signals, drain)
            for name, loop in loops.items():
                background.start_soon(health.supervisor.run, name, loop)

            # Report readiness before the coordinator responds: an unreachable coordinator must not cause restarts.
            systemd.notify("READY=1", "STATUS=waiting for the coordinator")
            prepare = partial(_prepare, config, stack, journal, clock)
            dependencies = await _run_unless_stopped(drain, partial(health.supervisor.run, "preparation", prepare))
            if dependencies is not None:
                systemd.notify("STATUS=working")
                page.parts = build_page_parts(dependencies)
                await Daemon(dependencies, drain, health).run(lambda: systemd.notify("STOPPING=1"))
            background.cancel_scope.cancel()
    log.info("stopped")


async def _prepare(config: DaemonConfig, stack: AsyncExitStack, journal: Journal, clock: Clock) -> DaemonDependencies:
    """Open the dependencies. If one cannot be opened, close the others, so that a retry is possible."""
    async with AsyncExitStack() as opened:
        dependencies = await open_dependencies(config, opened, journal, clock)
        stack.push_async_exit(opened.pop_all())
    return dependencies


def build_page_parts(dependencies: DaemonDependencies) -> DaemonParts:
    """Return the parts of the daemon that the provider's page shows."""
    return DaemonParts(
        coordinator=dependencies.coordinator,
        address_book=dependencies.address_book,
        provider_id=dependencies.provider_id,
        slots=dependencies.slots,
        model_ids=dependencies.model_ids,
        backends={
            name: (served.load, served.breaker, served.discount) for name, served in dependencies.served_models.items()
        },
    )


@attrs.frozen(slots=True, eq=False)
class Daemon:
    """Daemon that runs the stages from the first poll to the shutdown."""

    dependencies: DaemonDependencies
    drain: Drain
    health: DaemonHealth
    timings: Timings = attrs.field(factory=Timings)

    async def run(self, on_stopping: Callable[[], None] = lambda: None) -> None:
        """Run until a stop request, and then finish the held jobs. Call `on_stopping` when the shutdown begins."""
        dependencies = self.dependencies
        exclusions = Exclusions(dependencies.clock)
        exclusions.exclude_earlier_jobs(await dependencies.journal.read_failed_ids())
        pipeline = Pipeline.create(dependencies.journal, exclusions, dependencies.config.slots)
        offers = DeadlineChannel[Offer](min(dependencies.slots.total_slots, _MAX_STAGE_WORKERS))
        asks = AskPublisher(
            dependencies.coordinator, dependencies.signer, dependencies.provider_id, dependencies.journal, self.health
        )
        guard = self._build_guard()
        supervise = self.health.supervisor.run
        async with trio.open_nursery() as commitments:
            await self._start_stages(commitments, pipeline, offers, guard)
            await _run_unless_stopped(self.drain, partial(supervise, "guard", guard.wait_for_first_check))
            commitments.start_soon(supervise, "guard", guard.run)
            async with trio.open_nursery() as intake:

                def start_model(model: str) -> None:
                    served = dependencies.served_models[model]
                    asks.add_asks(self._model_asks(served))
                    self.health.expect_polls(model, served.config.poll_seconds)
                    intake.start_soon(supervise, f"poller:{model}", self._build_poller(served, exclusions, offers).run)

                for model in dependencies.offered:
                    start_model(model)
                catalogue = CatalogueWatcher(
                    dependencies.coordinator, dependencies.served_models, dependencies.model_ids, start_model
                )
                intake.start_soon(supervise, "asks", asks.run)
                intake.start_soon(supervise, "catalogue", catalogue.run)
                log.info(
                    "provider started",
                    release=RELEASE,
                    provider_id=dependencies.provider_id,
                    models=sorted(dependencies.offered),
                )
                await self.drain.begun_event.wait()
                on_stopping()
                log.info(
                    "stopping",
                    held=dependencies.slots.held_slots,
                    grace_seconds=dependencies.config.shutdown_grace_seconds,
                )
                intake.cancel_scope.cancel()
            for offer in offers.drain():
                offer.slot.release()
            await self._finish_jobs(asks)
            commitments.cancel_scope.cancel()

    async def _start_stages(
        self, nursery: trio.Nursery, pipeline: Pipeline, offers: DeadlineChannel[Offer], guard: Guard
    ) -> None:
        """Start the stages, and return when the jobs of an earlier run are resumed."""
        dependencies, timings, drain = self.dependencies, self.timings, self.drain
        coordinator, signer, clock = dependencies.coordinator, dependencies.signer, dependencies.clock
        lookup = JobLookup(coordinator, clock, dependencies.provider_id)
        limits = AheadLimits(
            {model.name: model.ahead for model in dependencies.config.models if model.ahead}, dependencies.journal
        )
        claimer = Claimer(
            coordinator, signer, clock, dependencies.provider_id, pipeline, offers, timings, self.health, limits
        )
        uploader = Uploader(coordinator, lookup, pipeline)
        sealer = SealStage(dependencies.address_book, pipeline)
        settler = Settler(coordinator, signer, clock, lookup, timings, pipeline)
        failer = Failer(coordinator, signer, clock, lookup, pipeline)
        opener = self._build_opener(pipeline)
        capacity = CapacityUpdater(
            coordinator, signer, dependencies.provider_id, dependencies.slots, dependencies.journal
        )
        reconciler = Reconciler(
            *(coordinator, clock, dependencies.provider_id, dependencies.model_ids, dependencies.slots, pipeline),
            on_other_daemon_claim=guard.withhold_for_other_daemon,
        )
        network_workers, cpu_workers = min(dependencies.slots.total_slots, _MAX_STAGE_WORKERS), os.cpu_count() or 1
        workers: list[tuple[str, int, TaskFunction]] = [
            ("claimer", network_workers, claimer.serve),
            ("opener", network_workers, partial(pipeline.serve, "open", pipeline.to_open, opener.step)),
            ("settler", network_workers, partial(pipeline.serve, "settle", pipeline.to_settle, settler.step)),
            ("failer", network_workers, partial(pipeline.serve, "fail", pipeline.to_fail, failer.step)),
            ("sealer", cpu_workers, partial(pipeline.serve, "seal", pipeline.to_seal, sealer.step)),
            ("uploader", cpu_workers, partial(pipeline.serve, "upload", pipeline.to_upload, uploader.step)),
            ("capacity", 1, capacity.run),
        ]
        tabs = self._build_tab_service()
        if tabs is not None:
            workers.append(("tabs", 1, tabs.mailbox.serve))
            if dependencies.direct is not None:
                workers.append(("direct endpoint", 1, partial(dependencies.direct.serve, tabs.tabs)))
        for name, served in dependencies.served_models.items():
            turns = Turns(served.config.slots)
            runner = Runner(
                name, served.backend, served.breaker, timings, pipeline, drain, turns, dependencies.config.box, tabs
            )
            run_jobs = partial(pipeline.serve, "run", pipeline.to_run[name], runner.step)
            workers.append((f"runner:{name}", served.config.slots, run_jobs))
            workers.append((f"breaker:{name}", 1, partial(probe_while_open, served.breaker, served.backend, name)))
        supervise = self.health.supervisor.run
        for task, count, loop in workers:
            for _ in range(count):
                nursery.start_soon(supervise, task, loop)
        await _run_unless_stopped(drain, partial(supervise, "reconciler", reconciler.resume_all))
        nursery.start_soon(supervise, "reconciler", reconciler.run)

    def _build_tab_service(self) -> TabService | None:
        dependencies = self.dependencies
        box = dependencies.config.box
        if box is None:
            return None
        endpoint = None if dependencies.direct is None else dependencies.direct.published_endpoint
        return TabService.create(box, dependencies.address_book, dependencies.mailbox, dependencies.slots, endpoint)

    def _build_guard(self) -> Guard:
        dependencies = self.dependencies
        return Guard(
            coordinator=dependencies.coordinator,
            chain=dependencies.chain,
            clock=dependencies.clock,
            health=self.health,
            provider_id=dependencies.provider_id,
            box_secret=dependencies.config.box,
            models={name: (served.config, served.backend) for name, served in dependencies.served_models.items()},
        )

    def _build_opener(self, pipeline: Pipeline) -> PayloadOpener:
        dependencies = self.dependencies
        return PayloadOpener(
            coordinator=dependencies.coordinator,
            signer=dependencies.signer,
            clock=dependencies.clock,
            address_book=dependencies.address_book,
            provider_id=dependencies.provider_id,
            box_secret=dependencies.config.box,
            gateways=dependencies.gateways,
            models={model.name: model for model in dependencies.config.models},
            spool_directory=dependencies.config.state_directory,
            max_container_bytes=dependencies.config.max_container_bytes,
            timings=self.timings,
            pipeline=pipeline,
            drain=self.drain,
            chain=dependencies.chain,
        )

    def _build_poller(self, served: ServedModel, exclusions: Exclusions, offers: DeadlineChannel[Offer]) -> Poller:
        dependencies = self.dependencies
        return Poller(
            model=served.config,
            model_id=dependencies.model_ids[served.config.name],
            provider_id=dependencies.provider_id,
            has_box_key=dependencies.config.box is not None,
            coordinator=dependencies.coordinator,
            clock=dependencies.clock,
            slots=dependencies.slots,
            load=served.load,
            discount=served.discount,
            breaker=served.breaker,
            exclusions=exclusions,
            timings=self.timings,
            offers=offers,
            offer_checker=OfferChecker(dependencies.address_book, dependencies.chain),
            health=self.health,
        )

    def _model_asks(self, served: ServedModel) -> list[Ask]:
        model_id = self.dependencies.model_ids[served.config.name]
        return [Ask(model_id, sla, rates.rate_in, rates.rate_out) for sla, rates in served.config.asks.items()]

    async def _finish_jobs(self, asks: AskPublisher) -> None:
        """Finish the held jobs within the grace period, and fail unfinished jobs near its end."""
        slots, grace = self.dependencies.slots, self.dependencies.config.shutdown_grace_seconds
        with trio.move_on_after(grace):
            async with trio.open_nursery() as last:
                last.start_soon(self.health.supervisor.run, "asks", asks.withdraw)
                with trio.move_on_after(max(grace / 2, grace - _FAIL_PHASE_S)):
                    await slots.wait_empty()
                self.drain.cancel_work()
                await slots.wait_empty()
        if slots.held_slots:
            log.warning("stopped with held jobs", held=slots.held_slots)


async def _run_unless_stopped(drain: Drain, operation: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of `operation`, or None if the daemon is stopped first."""
    result = None
    async with trio.open_nursery() as nursery:

        async def cancel_when_stopped() -> None:
            await drain.begun_event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel_when_stopped)
        result = await operation()
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
