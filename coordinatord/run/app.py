"""Open all services and run the coordinator. Task groups nest in the order of shutdown: the inner group ends first.

pool, node, store, keys  closed last
  background             indexer, relayer, reclaims, batches, janitor, notices, events; stops after the last request
    server               HTTP; stops first
"""

import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import anyio
import attrs
import structlog
from anyio.abc import TaskGroup, TaskStatus

from common.daemon.operators_port import bind_operators_port
from common.daemon.process import RELEASE
from common.daemon.supervision import Supervisor, TaskFunction
from common.daemon.systemd import Systemd
from coordinatord.api.batches.allowances import LineAllowances
from coordinatord.api.batches.expansion import BatchExpander
from coordinatord.api.batches.line_containers import LineContainers
from coordinatord.api.batches.output import BatchFinaliser
from coordinatord.api.batches.worker import BatchWorker
from coordinatord.api.book.pending_offers import store_offers
from coordinatord.api.escrow.hosting import Escrow
from coordinatord.api.provider_ops.reclaimer import ReclaimWorker
from coordinatord.api.system.routes import StopFlag
from coordinatord.api.webhooks.delivery import run_deliveries
from coordinatord.base import metrics
from coordinatord.base.clock import system_clock
from coordinatord.base.startup import StartupRetry
from coordinatord.base.wake import Wake
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.indexer.agreement import CheckedSource
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, run_indexer
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.relaying import Relaying
from coordinatord.chain.relayer.solvency import SolvencyChecks
from coordinatord.chain.relayer.worker import run_relayer
from coordinatord.http.cors import Origins
from coordinatord.http.server.connections import ConnectionLimits
from coordinatord.http.server.serving import listening_socket, serve_until
from coordinatord.run.application import compose_application
from coordinatord.run.config import Config
from coordinatord.run.constructors import gas_policy, relayer_settings
from coordinatord.run.dependencies import (
    Dependencies,
    build_containers,
    build_file_store,
    migrate_and_check_chain,
    open_dependencies,
    relayer_rpc,
    watch_nodes,
)
from coordinatord.run.descriptors import max_caller_connections, memory_limit_bytes, raise_descriptor_limit
from coordinatord.run.escrow import EscrowDependencies, open_escrow
from coordinatord.run.janitor import Janitor
from coordinatord.run.limits import Limits
from coordinatord.run.operators_port import MetricsHistory, operators_app, serve_operators
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins.containers import Containers

log = structlog.get_logger(__name__)

# Time for load balancers to notice that this process is not ready, before it stops listening.
_UNREADY_PAUSE_S: Final = 0.5


async def run(config: Config, limits: Limits | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `limits` replaces the default limits. The process's file descriptors and memory
    always limit the number of connections."""
    systemd = Systemd()
    stopping = StopFlag()
    listening = listening_socket(config.port, config.bind_host)
    max_connections = max_caller_connections(raise_descriptor_limit(), memory_limit_bytes(), config)
    limits = (
        config.limits.with_connections(max_connections)
        if limits is None
        else attrs.evolve(limits, connections=min(limits.connections, max_connections))
    )
    config = attrs.evolve(config, limits=limits)
    async with AsyncExitStack() as stack:
        startup = StartupRetry(limits.startup_timeout_s)
        dependencies = await startup.retry_until_ready("the database", partial(open_dependencies, config, stack))
        await migrate_and_check_chain(dependencies, startup)
        escrow = await stack.enter_async_context(open_escrow(config, escrow_dependencies(dependencies), system_clock))
        if escrow is not None:
            await escrow.custody.acquire_first_key()
        relaying = build_relaying(dependencies)
        containers = build_containers(dependencies)
        loops = background_tasks(dependencies, relaying, build_janitor(dependencies, containers), escrow)
        loops["watchdog"] = systemd.feed_watchdog
        if config.metrics_port:
            port = bind_operators_port(config.metrics_host, config.metrics_port, "METRICS_HOST, METRICS_PORT")
            history = MetricsHistory()
            loops["metrics_history"] = history.run
            operators = operators_app(_pool_metrics_refresher(dependencies.database), history)
            loops["metrics"] = partial(serve_operators, operators, stack.enter_context(port))
        async with anyio.create_task_group() as background:
            start_background(background, dependencies.supervisor, loops)
            stop = anyio.Event()
            await background.start(_stop_on_signal, stop)
            app = compose_application(dependencies, relaying, containers, escrow, stopping)

            async def wait_for_stop() -> None:
                await stop.wait()
                stopping.is_set = True
                systemd.notify("STOPPING=1")
                log.info("stopping", grace_seconds=limits.shutdown_grace_s)
                await anyio.sleep(_UNREADY_PAUSE_S)
                dependencies.events.close()  # otherwise open streams would last for the whole grace period

            systemd.notify("READY=1")
            log.info(
                "serving", release=RELEASE, host=config.bind_host, port=config.port, connections=limits.connections
            )
            await serve_until(
                app,
                listening,
                wait_for_stop,
                grace_seconds=limits.shutdown_grace_s,
                limits=connection_limits(config),
                origins=Origins.of(config.cors_origins),
            )
            background.cancel_scope.cancel()
    log.info("stopped")


def connection_limits(config: Config) -> ConnectionLimits:
    limits = config.limits
    return ConnectionLimits(limits.connections, limits.connections_per_caller, frozenset(config.trusted_proxies))


def escrow_dependencies(dependencies: Dependencies) -> EscrowDependencies:
    providers = ProviderRegistry(dependencies.rpc, dependencies.config.addresses.provider_registry)
    return EscrowDependencies(dependencies.domains, dependencies.database, dependencies.rpc, providers)


def build_relaying(dependencies: Dependencies) -> Relaying:
    config = dependencies.config
    return Relaying(
        dependencies.database,
        dependencies.notices,
        budgets=GasBudgets(dependencies.database, gas_policy(config)),
        max_depth=config.relay_max_depth,
        queue_timeout_ms=config.relay_queue_timeout_ms,
        role=dependencies.relayer_role,
    )


def build_janitor(dependencies: Dependencies, containers: Containers) -> Janitor:
    config = dependencies.config
    return Janitor(
        dependencies.database,
        containers,
        build_file_store(dependencies),
        config.file_retention_seconds,
        config.limits.unsettled_retention_s,
        config.limits.failed_batch_retention_s,
        config.relay_retention_seconds,
        config.limits.endings_retention_s,
    )


def background_tasks(
    dependencies: Dependencies, relaying: Relaying, janitor: Janitor, escrow: Escrow | None
) -> dict[str, TaskFunction]:
    """Return every background task, keyed by the name that the log, the metrics and the readiness check use."""
    config, database, notices = dependencies.config, dependencies.database, dependencies.notices
    reclaimer = ReclaimWorker(database, notices, config.addresses.job_registry, max_depth=config.relay_max_depth)
    loops: dict[str, TaskFunction] = {
        "notices": partial(notices.listen, database),
        "relay_waits": relaying.run,
        "events": dependencies.events.run,
        "progress": dependencies.progress.run,
        "tabs": dependencies.tabs.run,
        "poll_times": dependencies.liveness.run,
        "lapsed_offers": dependencies.pending_offers.run,
        "pending_offers": partial(store_offers, database, dependencies.offer_mailbox),
        "indexer": partial(run_index_task, dependencies),
        "relayer": partial(run_relay_task, dependencies),
        "reclaimer": reclaimer.run,
        "batches": build_batch_worker(dependencies).run,
        "janitor": janitor.run,
    }
    if len(dependencies.nodes.all) > 1:
        loops["nodes"] = partial(watch_nodes, dependencies)
    if config.webhooks_key:
        private = config.webhooks_private == "allow"
        loops["webhooks"] = partial(run_deliveries, database, notices, config.webhooks_key, allow_private=private)
    if escrow is not None:
        loops["escrow"] = escrow.custody.run
    return loops


def start_background(tasks: TaskGroup, supervisor: Supervisor, loops: Mapping[str, TaskFunction]) -> None:
    for name, loop in loops.items():
        tasks.start_soon(supervisor.run, name, loop)


def build_batch_worker(dependencies: Dependencies) -> BatchWorker:
    config, database, rpc = dependencies.config, dependencies.database, dependencies.rpc
    expander = BatchExpander(
        domains=dependencies.domains,
        registry=JobRegistry(rpc, config.addresses.job_registry),
        allowances=LineAllowances(SolvencyChecks(PaymentToken(rpc, config.addresses.paytoken)), gas_policy(config)),
        pins=dependencies.pins,
        containers=LineContainers(database, dependencies.pins),
        retention_seconds=config.file_retention_seconds,
        clock=system_clock,
    )
    finaliser = BatchFinaliser(build_file_store(dependencies), config.limits.failed_batch_retention_s)
    return BatchWorker(database, dependencies.notices, expander, finaliser)


async def run_index_task(dependencies: Dependencies) -> None:
    """Run the indexer until cancelled."""
    config, book = dependencies.config, dependencies.config.addresses
    settings = IndexerSettings(
        chain_id=book.chain_id,
        deploy_block=book.deploy_block,
        max_range_blocks=config.getlogs_cap,
        block_time_ms=config.block_time_ms,
        confirmations=config.confirmations,
        journal_blocks=config.limits.journal_blocks,
    )
    decoder, nodes = LogDecoder(book), dependencies.nodes
    source = CheckedSource(nodes, decoder) if len(nodes.all) > 1 else NodeSource(dependencies.rpc, decoder)
    await run_indexer(dependencies.database, source, settings, dependencies.notices, Wake())


async def run_relay_task(dependencies: Dependencies) -> None:
    """Run the relayer until cancelled."""
    await run_relayer(
        dependencies.database,
        dependencies.notices,
        relayer_rpc(dependencies),
        dependencies.relayer,
        chain_id=dependencies.config.addresses.chain_id,
        settings=relayer_settings(dependencies.config),
        role=dependencies.relayer_role,
    )


async def _stop_on_signal(stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Set `stop` on SIGTERM or SIGINT. Also set `stop` when this task is cancelled, because the server is shielded from
    cancellation and ends only with `stop`. The task reports `started` once it receives signals."""
    try:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                return
    finally:
        stop.set()


def _pool_metrics_refresher(database: Database) -> Callable[[], None]:
    def refresh() -> None:
        size, idle = database.pool.get_size(), database.pool.get_idle_size()
        metrics.database_connections.labels("idle").set(idle)
        metrics.database_connections.labels("used").set(size - idle)

    return refresh
