"""The composition root. Task groups nest in the order of shutdown: what stands inside ends first.

pool, node, store, keys  closed last
  background             indexer, relayer, reclaims, batches, janitor, notices: commitments go on while requests end
    intake               HTTP; told first, ends first
"""

import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import anyio
import attrs
import structlog
from anyio.abc import TaskGroup
from starlette.types import ASGIApp

from common.domains import Domains
from common.native.library import LIBRARY
from common.secp256k1 import Wallet
from coordinatord.application import Endpoints, build_application
from coordinatord.base import metrics
from coordinatord.base.clock import system_clock
from coordinatord.base.concurrency import Patience
from coordinatord.base.systemd import Systemd
from coordinatord.batches.batches import BatchService
from coordinatord.batches.expansion import Expansion, LineAllowances
from coordinatord.batches.lines import LineContainers
from coordinatord.batches.plan import Plans
from coordinatord.batches.routes import BatchRoutes
from coordinatord.batches.worker import BatchWorker, Finalising
from coordinatord.book.polls import Funding, Polls, no_custody
from coordinatord.book.reads import IndexReads, PostedJobs
from coordinatord.book.routes import Book, Models, Providers
from coordinatord.chain.boot import check_chain
from coordinatord.chain.logs import Decoder
from coordinatord.chain.registries import AskRegistry, JobRegistry, PaymentToken, ProviderRegistry
from coordinatord.chain.rpc import Rpc, open_rpc
from coordinatord.config import Config
from coordinatord.database.connections import Database, open_database
from coordinatord.database.migrate import migrate
from coordinatord.database.notices import Notices
from coordinatord.escrow.hosting import Escrow, EscrowDependencies, open_escrow
from coordinatord.escrow.release import Claims, Releases
from coordinatord.escrow.routes import EscrowRoutes, Hosted
from coordinatord.escrow.sql import read_custody
from coordinatord.files.files import FileStore, Uploads
from coordinatord.files.routes import FileRoutes
from coordinatord.http.middleware import Origins
from coordinatord.indexer.fetch import Source
from coordinatord.indexer.follow import IndexerSettings, Wake, run_indexer
from coordinatord.janitor import Janitor
from coordinatord.operations.asks import Asks
from coordinatord.operations.ops import Ops
from coordinatord.operations.reclaimer import ReclaimWorker
from coordinatord.operations.routes import Operations
from coordinatord.orders.cancel import Cancels, Endings
from coordinatord.orders.routes import Jobs
from coordinatord.orders.submission import Matchmaker, Submissions
from coordinatord.pins.containers import Containers, StorageBudgets
from coordinatord.pins.store import PinStore, open_pin_store
from coordinatord.relayer.budgets import GasBudgets, GasPolicy, Promises
from coordinatord.relayer.relaying import Relaying
from coordinatord.relayer.settings import RelayerSettings
from coordinatord.relayer.worker import run_relayer
from coordinatord.server.connections import Room
from coordinatord.server.serving import listening_socket, serve_metrics, serve_until
from coordinatord.sessions.routes import Handshake
from coordinatord.sessions.sessions import SessionCache, SessionService
from coordinatord.system.readiness import DeploymentReads, ReadinessCheck
from coordinatord.system.routes import Stopping, System

log = structlog.get_logger(__name__)

_CONNECTIONS_FOR_CALLERS: Final = 32  # to the node
_UNREADY_PAUSE: Final = 0.5  # seconds in which balancers may see that this node is not ready, before it stops listening


@attrs.frozen(slots=True)
class Ground:
    """What everything stands on.

    `rpc_for_callers` is the same node through connections of its own: what callers ask must not wait in the way of
    the relayer, the indexer and the readiness of all.
    """

    config: Config
    domains: Domains
    relayer: Wallet
    database: Database
    rpc: Rpc
    rpc_for_callers: Rpc
    pins: PinStore
    notices: Notices


async def run(config: Config) -> None:
    """The daemon, until SIGTERM or SIGINT."""
    systemd = Systemd()
    stopping = Stopping()
    listening = listening_socket(config.port)
    async with AsyncExitStack() as stack:
        patience = Patience(config.boot_patience_s)
        ground = await patience.until("the database", partial(open_ground, config, stack))
        await prepare(ground, patience)
        escrow = await stack.enter_async_context(open_escrow(config, escrow_ground(ground), system_clock))
        if escrow is not None:
            await escrow.custody.begin()
        relaying = relaying_of(ground)
        containers = containers_of(ground)
        async with anyio.create_task_group() as background:
            background.start_soon(systemd.keep_alive)
            start_background(background, ground, relaying)
            if escrow is not None:
                background.start_soon(escrow.custody.run)
            background.start_soon(janitor_of(ground, containers).run)
            if config.metrics_port:
                refresh = _pool_metrics(ground.database)
                await background.start(serve_metrics, config.metrics_host, config.metrics_port, refresh)
            stop = anyio.Event()
            background.start_soon(_stop_when_told, stop)
            app = compose(ground, relaying, containers, escrow, stopping)

            async def stopped() -> None:
                await stop.wait()
                stopping.begun = True
                systemd.say("STOPPING=1")
                log.info("stopping", grace_seconds=config.shutdown_grace_s)
                await anyio.sleep(_UNREADY_PAUSE)

            systemd.say("READY=1")
            log.info("serving", port=config.port, native=LIBRARY is not None)
            await serve_until(
                app,
                listening,
                stopped,
                grace_seconds=config.shutdown_grace_s,
                room=Room(config.connections_max, config.connections_per_caller, frozenset(config.trusted_proxies)),
                origins=Origins.of(config.cors_origins),
            )
            background.cancel_scope.cancel()
    log.info("stopped")


async def open_ground(config: Config, stack: AsyncExitStack) -> Ground:
    """Connections, closed with `stack` in the opposite order. `Retryable`, with nothing opened, when the database does
    not answer."""
    database = await stack.enter_async_context(
        open_database(
            config.database_url.reveal(),
            smallest=config.database_pool_min,
            largest=config.database_pool_max,
            statement_timeout=config.database_statement_timeout_s,
        )
    )
    pins = await stack.enter_async_context(
        open_pin_store(
            config.pin_store_endpoint,
            config.pin_store_bucket,
            config.pin_store_key,
            config.pin_store_secret,
            config.pin_store_region,
        )
    )
    node = config.rpc_url.reveal()
    rpc = await stack.enter_async_context(open_rpc(node))
    rpc_for_callers = await stack.enter_async_context(open_rpc(node, connections=_CONNECTIONS_FOR_CALLERS))
    return Ground(
        config=config,
        domains=Domains.of(config.addresses),
        relayer=Wallet(bytes.fromhex(config.relayer_key.reveal())),
        database=database,
        rpc=rpc,
        rpc_for_callers=rpc_for_callers,
        pins=pins,
        notices=Notices(),
    )


async def prepare(ground: Ground, patience: Patience) -> None:
    """Migrations under their lock, and the chain held against the address book."""

    async def migrated() -> list[str]:
        async with ground.database.unhurried() as connection:
            return await migrate(connection)

    if applied := await patience.until("the database", migrated):
        log.info("migrated", applied=applied)
    config = ground.config
    await patience.until("the node", partial(check_chain, ground.rpc, config.addresses, ground.domains))


def escrow_ground(ground: Ground) -> EscrowDependencies:
    providers = ProviderRegistry(ground.rpc, ground.config.addresses.provider_registry)
    return EscrowDependencies(ground.domains, ground.database, ground.rpc, providers)


def relaying_of(ground: Ground) -> Relaying:
    config = ground.config
    return Relaying(
        ground.database,
        ground.notices,
        budgets=GasBudgets(ground.database, GasPolicy.of(config)),
        max_depth=config.relay_max_depth,
        queue_timeout_ms=config.relay_queue_timeout_ms,
    )


def containers_of(ground: Ground) -> Containers:
    config = ground.config
    return Containers(ground.database, ground.pins, config.file_retention_seconds, StorageBudgets.of(config))


def files_of(ground: Ground) -> FileStore:
    config = ground.config
    return FileStore(ground.database, ground.pins, config.file_retention_seconds, StorageBudgets.of(config))


def janitor_of(ground: Ground, containers: Containers) -> Janitor:
    config = ground.config
    return Janitor(
        ground.database,
        containers,
        files_of(ground),
        config.file_retention_seconds,
        config.unsettled_retention_seconds,
        config.failed_batch_retention_seconds,
    )


def start_background(tasks: TaskGroup, ground: Ground, relaying: Relaying) -> None:
    """What moves relays to the chain and the chain into the index."""
    tasks.start_soon(ground.notices.listen, ground.database)
    tasks.start_soon(relaying.run)
    tasks.start_soon(index, ground)
    tasks.start_soon(relay, ground)
    registry, depth = ground.config.addresses.job_registry, ground.config.relay_max_depth
    tasks.start_soon(ReclaimWorker(ground.database, ground.notices, registry, max_depth=depth).run)
    tasks.start_soon(batch_worker_of(ground).run)


def compose(
    ground: Ground, relaying: Relaying, containers: Containers, escrow: Escrow | None, stopping: Stopping
) -> ASGIApp:
    """Services, and the routes over them."""
    config, database, domains = ground.config, ground.database, ground.domains
    book = config.addresses
    asked = ground.rpc_for_callers
    jobs = JobRegistry(asked, book.job_registry)
    providers = ProviderRegistry(asked, book.provider_registry)
    reads = IndexReads.over(database)
    posted = PostedJobs.over(
        database, jobs, Decoder(book), first_block=book.deploy_block, widest_range=config.getlogs_cap
    )
    readiness = ReadinessCheck(
        database, ground.rpc, block_time_ms=config.block_time_ms, ready_lag_blocks=config.ready_lag_blocks
    )
    sessions = SessionService(domains, database, providers, SessionCache(database))
    uploads = Uploads(database, config.file_retention_seconds)
    budgets = relaying.budgets
    submissions = Submissions(
        domains=domains,
        registry=jobs,
        promises=Promises(PaymentToken(asked, book.paytoken)),
        budgets=budgets,
        relayer=ground.relayer.address,
        market=Matchmaker(database, config.match_liveness_ms, config.match_candidates),
        containers=containers,
        uploads=uploads,
        relaying=relaying,
        clock=system_clock,
    )
    ops = Ops(
        domains=domains,
        jobs=jobs,
        providers=providers,
        posted=posted,
        relayer=ground.relayer.address,
        database=database,
        budgets=budgets,
        containers=containers,
        uploads=uploads,
        relaying=relaying,
        clock=system_clock,
    )
    asks = Asks(domains, AskRegistry(asked, book.ask_registry), providers, budgets, relaying, system_clock)
    polls = Polls(
        database,
        Funding(PaymentToken(ground.rpc, book.paytoken), database),
        reads.position,
        lease_ms=config.match_lease_ms,
        liveness_ms=config.match_liveness_ms,
        # Only keys that live in memory can be lost.
        custody=read_custody if config.escrow_mode == "mock" else no_custody,
    )
    endings = Endings(database, jobs, config.getlogs_cap)
    cancels = Cancels(domains, jobs, posted, budgets, endings, relaying, system_clock)
    endpoints = Endpoints(
        system=System(readiness, DeploymentReads(book, jobs, config.block_time_ms), stopping),
        handshake=Handshake(sessions, book.chain_id),
        models=Models(database, reads),
        jobs=Jobs(book, submissions, cancels, reads),
        files=FileRoutes(files_of(ground)),
        book=Book(database, reads, polls),
        operations=Operations(ops, asks, jobs, posted),
        providers=Providers(database, reads),
        escrow=EscrowRoutes(hosted_escrow(ground, escrow, posted, providers)),
        batches=BatchRoutes(
            BatchService(database, config.file_retention_seconds, StorageBudgets.of(config)),
            Plans(database, config.match_liveness_ms),
        ),
    )
    return build_application(config, endpoints, readiness, sessions, reads)


def hosted_escrow(
    ground: Ground, escrow: Escrow | None, posted: PostedJobs, providers: ProviderRegistry
) -> Hosted | None:
    if escrow is None:
        return None
    book = ground.config.addresses
    releases = Releases(
        domains=ground.domains,
        chain_id=book.chain_id,
        registry=book.job_registry,
        custody=escrow.custody,
        claims=Claims(posted.registry, providers, ground.config.confirmations),
        posted=posted,
        clock=system_clock,
    )
    return Hosted(escrow, releases, system_clock)


def batch_worker_of(ground: Ground) -> BatchWorker:
    database, retention = ground.database, ground.config.file_retention_seconds
    expansion = Expansion(
        domains=ground.domains,
        registry=JobRegistry(ground.rpc, ground.config.addresses.job_registry),
        allowances=LineAllowances(
            Promises(PaymentToken(ground.rpc, ground.config.addresses.paytoken)), GasPolicy.of(ground.config)
        ),
        pins=ground.pins,
        containers=LineContainers(database, ground.pins),
        retention_seconds=retention,
        clock=system_clock,
        failed_seconds=ground.config.failed_batch_retention_seconds,
    )
    finalising = Finalising(files_of(ground), ground.config.failed_batch_retention_seconds)
    return BatchWorker(database, ground.notices, expansion, finalising)


async def index(ground: Ground) -> None:
    config, book = ground.config, ground.config.addresses
    settings = IndexerSettings(
        chain_id=book.chain_id,
        deploy_block=book.deploy_block,
        getlogs_cap=config.getlogs_cap,
        block_time_ms=config.block_time_ms,
        confirmations=config.confirmations,
        journal_blocks=config.journal_blocks,
    )
    decoder = Decoder(book)
    await run_indexer(ground.database, Source(ground.rpc, decoder), settings, ground.notices, Wake())


async def relay(ground: Ground) -> None:
    await run_relayer(
        ground.database,
        ground.notices,
        ground.rpc,
        ground.relayer,
        chain_id=ground.config.addresses.chain_id,
        settings=RelayerSettings.of(ground.config),
    )


async def _stop_when_told(stop: anyio.Event) -> None:
    """By a signal, or by the failure of what runs beside this task: serving is shielded from cancellation, so it has
    to be told."""
    try:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                return
    finally:
        stop.set()


def _pool_metrics(database: Database) -> Callable[[], None]:
    def refresh() -> None:
        size, idle = database.pool.get_size(), database.pool.get_idle_size()
        metrics.database_connections.labels("idle").set(idle)
        metrics.database_connections.labels("used").set(size - idle)

    return refresh
