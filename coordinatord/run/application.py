"""Build the ASGI application: all routes, behind the middleware that handles every request."""

from typing import Final

import attrs

from common.daemon.asgi import ASGIApp
from coordinatord.api.batches.batches import BatchService
from coordinatord.api.batches.events import BatchEvents
from coordinatord.api.batches.plan import BatchPlanner
from coordinatord.api.batches.routes import BatchRoutes
from coordinatord.api.book.funding import FundsChecker
from coordinatord.api.book.model_routes import ModelRoutes
from coordinatord.api.book.polls import PollService
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.book.posted_jobs_sql import read_posted_terms
from coordinatord.api.book.provider_routes import ProviderRoutes
from coordinatord.api.book.reads import IndexReads, MarketWindows
from coordinatord.api.book.routes import BookRoutes
from coordinatord.api.book.why import UnclaimedJobExplainer
from coordinatord.api.escrow.hosting import Escrow
from coordinatord.api.escrow.release import ClaimReader, ReleaseService
from coordinatord.api.escrow.routes import EscrowRoutes, EscrowServices
from coordinatord.api.events.connection_limits import ConnectionLimits
from coordinatord.api.events.events_sql import read_current_events
from coordinatord.api.events.routes import EventRoutes
from coordinatord.api.files.files import Uploads
from coordinatord.api.files.routes import FileRoutes
from coordinatord.api.orders.cancel import CancelService
from coordinatord.api.orders.endings import EndingFinder
from coordinatord.api.orders.matchmaker import Matchmaker
from coordinatord.api.orders.preflight import Preflight
from coordinatord.api.orders.routes import OrderRoutes
from coordinatord.api.orders.submission import SubmissionService
from coordinatord.api.orders.validation import OrderChecks
from coordinatord.api.pages.routes import PageDataRoutes, PageRoutes
from coordinatord.api.provider_ops.asks import AskPublisher
from coordinatord.api.provider_ops.ops import OpService
from coordinatord.api.provider_ops.routes import ProviderOpRoutes
from coordinatord.api.provider_ops.shared_views import SharedViews
from coordinatord.api.sessions.routes import SessionRoutes
from coordinatord.api.sessions.sessions import SessionCache, SessionService
from coordinatord.api.system.readiness import DeploymentReader, ReadinessCheck
from coordinatord.api.system.routes import StopFlag, SystemRoutes
from coordinatord.api.tabs.routes import TabRoutes
from coordinatord.api.webhooks.endpoints import SealedSecrets, WebhookEndpoints
from coordinatord.api.webhooks.routes import WebhookRoutes
from coordinatord.base.clock import system_clock
from coordinatord.chain.contracts.ask_registry import AskRegistry
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.relayer.relaying import Relaying
from coordinatord.chain.relayer.solvency import SolvencyChecks
from coordinatord.chain.rpc.client import Rpc
from coordinatord.http.bodies import BodyBudget, BodyReader
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets
from coordinatord.http.cors import CorsMiddleware, Origins
from coordinatord.http.dispatch import Dispatcher, DispatcherServices
from coordinatord.http.middleware import RequestMiddleware
from coordinatord.http.openapi import openapi_route
from coordinatord.http.response_cache import BlockCache
from coordinatord.http.routing import Route
from coordinatord.http.uploads import MAX_UPLOAD_MEMORY_BYTES, TransferLimits, UploadReader
from coordinatord.run.config import Config
from coordinatord.run.constructors import storage_budgets
from coordinatord.run.dependencies import Dependencies, build_file_store
from coordinatord.storage.database.batched_reads import BatchedReads, with_snapshot
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import JOB_OFFERED
from coordinatord.storage.pins.containers import Containers

# Without `requests_burst`, a burst is the number of requests that REQUESTS_PER_SECOND allows in this time.
_BURST_DURATION_S: Final = 2.5


@attrs.frozen(slots=True)
class RouteGroups:
    """Objects that declare the API's routes, one per topic."""

    system: SystemRoutes
    sessions: SessionRoutes
    models: ModelRoutes
    jobs: OrderRoutes
    files: FileRoutes
    book: BookRoutes
    operations: ProviderOpRoutes
    providers: ProviderRoutes
    escrow: EscrowRoutes
    batches: BatchRoutes
    events: EventRoutes
    tabs: TabRoutes
    webhooks: WebhookRoutes
    page_data: PageDataRoutes
    pages: PageRoutes

    def routes(self) -> list[Route]:
        groups = (
            self.system,
            self.sessions,
            self.models,
            self.jobs,
            self.files,
            self.book,
            self.operations,
            self.providers,
            self.escrow,
            self.batches,
            self.events,
            self.tabs,
            self.webhooks,
            self.page_data,
        )
        routes = [route for group in groups for route in group.routes()]
        return [*routes, openapi_route(routes), *self.pages.routes()]


def build_application(
    config: Config,
    groups: RouteGroups,
    readiness: ReadinessCheck,
    sessions: SessionService,
    reads: IndexReads,
    *,
    buckets: TokenBuckets,
) -> ASGIApp:
    routes, limits = groups.routes(), config.limits
    max_body_bytes = max(route.body.max_bytes for route in routes if route.body is not None)
    gates = DispatcherServices(
        is_ready=readiness.is_ready,
        find_session=sessions.find,
        body_reader=BodyReader(limits.body_timeout_s, limits.body_min_bytes_per_s, limits.body_stall_timeout_s),
        body_budget=BodyBudget(limits.body_memory_bytes, max(limits.body_memory_bytes // 2, max_body_bytes)),
        upload_reader=UploadReader(
            BodyBudget(limits.upload_memory_bytes, max(limits.upload_memory_bytes // 2, MAX_UPLOAD_MEMORY_BYTES)),
            TransferLimits(limits.uploads_per_caller, limits.uploads_per_wallet),
            config.max_blob_bytes,
            limits.upload_min_bytes_per_s,
            limits.body_stall_timeout_s,
        ),
        response_cache=BlockCache(reads.position),
    )
    app: ASGIApp = Dispatcher(routes, gates)
    app = CallerLimits(app, buckets, frozenset(config.trusted_proxies))
    origins = Origins.of(config.cors_origins)
    if config.cors_origins:
        app = CorsMiddleware(app, origins)
    return RequestMiddleware(app, origins)


def compose_application(
    dependencies: Dependencies, relaying: Relaying, containers: Containers, escrow: Escrow | None, stopping: StopFlag
) -> ASGIApp:
    """Build the services, and the application that serves their routes."""
    config, database, domains = dependencies.config, dependencies.database, dependencies.domains
    book = config.addresses
    callers_rpc = dependencies.rpc_for_callers
    jobs = JobRegistry(callers_rpc, book.job_registry)
    providers = ProviderRegistry(callers_rpc, book.provider_registry)
    reads = IndexReads.from_databases(database, dependencies.replicas)
    posted = PostedJobs(
        jobs,
        LogDecoder(book),
        first_block=book.deploy_block,
        max_range_blocks=config.getlogs_cap,
        indexed=BatchedReads(database.prepared_connection(), read_posted_terms),
    )
    readiness = ReadinessCheck(
        database,
        dependencies.rpc,
        block_time_ms=config.block_time_ms,
        ready_lag_blocks=config.ready_lag_blocks,
        role=dependencies.relayer_role,
        chain_id=book.chain_id,
        supervisor=dependencies.supervisor,
    )
    windows = MarketWindows(reads.lists, readiness.is_ready)
    sessions = SessionService(domains, database, providers, SessionCache(database))
    uploads = Uploads(database, config.file_retention_seconds)
    budgets = relaying.budgets
    waiting, offers = dependencies.waiting_polls, dependencies.pending_offers
    dependencies.notices.subscribe_always(JOB_OFFERED, offers.on_offer_notice)
    checks = OrderChecks(
        domains=domains,
        registry=jobs,
        solvency=SolvencyChecks(PaymentToken(callers_rpc, book.paytoken)),
        budgets=budgets,
        relayer=dependencies.relayer.address,
        uploads=uploads,
        windows=windows,
        clock=system_clock,
    )
    market = Matchmaker(database, config.match_liveness_ms, config.match_candidates)
    submissions = SubmissionService(checks, market, dependencies.offer_mailbox, containers, relaying)
    ops = OpService(
        domains=domains,
        jobs=jobs,
        providers=providers,
        posted_jobs=posted,
        offers=offers,
        relayer=dependencies.relayer.address,
        database=database,
        budgets=budgets,
        containers=containers,
        uploads=uploads,
        relaying=relaying,
        clock=system_clock,
        views=SharedViews(callers_rpc),
    )
    asks = AskPublisher(
        domains, AskRegistry(callers_rpc, book.ask_registry), providers, budgets, relaying, system_clock
    )
    limits = config.limits
    burst = limits.requests_burst or config.requests_per_second * _BURST_DURATION_S
    buckets = TokenBuckets(config.requests_per_second, burst)
    hub = dependencies.events
    hub.add_watcher(lambda _: reads.position.invalidate())  # reads after an event must include the event's changes
    hub.add_watcher(waiting.on_events)
    connection_limits = ConnectionLimits(limits.event_listeners, limits.event_listeners_per_caller)
    polls = PollService(
        database,
        FundsChecker(PaymentToken(dependencies.rpc, book.paytoken), database),
        lease_ms=config.match_lease_ms,
        liveness=dependencies.liveness,
        waiting_polls=waiting,
        connection_limits=connection_limits,
        offers=offers,
    )
    why = UnclaimedJobExplainer(
        reads, FundsChecker(PaymentToken(callers_rpc, book.paytoken), database), config.match_liveness_ms
    )
    endings = EndingFinder(database, jobs, config.getlogs_cap)
    cancels = CancelService(database, domains, jobs, posted, budgets, endings, relaying, system_clock)
    deployment = DeploymentReader(book, jobs, windows, config.block_time_ms, config.gateway_url)
    groups = RouteGroups(
        system=SystemRoutes(readiness, deployment, stopping),
        sessions=SessionRoutes(sessions, book.chain_id),
        models=ModelRoutes(reads),
        jobs=OrderRoutes(book, submissions, Preflight(submissions), cancels, reads, dependencies.progress),
        files=FileRoutes(build_file_store(dependencies)),
        book=BookRoutes(reads, polls, why, buckets),
        operations=ProviderOpRoutes(ops, asks, jobs, posted, dependencies.progress),
        providers=ProviderRoutes(reads),
        escrow=EscrowRoutes(escrow_services(dependencies, escrow, posted)),
        batches=BatchRoutes(
            BatchService(database, config.file_retention_seconds, storage_budgets(config)),
            BatchPlanner(database, config.match_liveness_ms),
            BatchEvents(hub, connection_limits, dependencies.notices),
        ),
        events=EventRoutes(
            hub,
            connection_limits,
            BatchedReads(database.prepared_connection(), with_snapshot(read_current_events)),
            dependencies.progress,
            buckets,
        ),
        tabs=TabRoutes(dependencies.tabs, connection_limits),
        webhooks=WebhookRoutes(webhook_endpoints(config, database, PaymentToken(callers_rpc, book.paytoken))),
        page_data=PageDataRoutes(reads, database, config.match_liveness_ms),
        pages=PageRoutes(),
    )
    return build_application(config, groups, readiness, sessions, reads, buckets=buckets)


def webhook_endpoints(config: Config, database: Database, token: PaymentToken) -> WebhookEndpoints | None:
    """Return the service for webhook endpoints, or None without WEBHOOKS_KEY."""
    if not config.webhooks_key:
        return None
    return WebhookEndpoints(database, SealedSecrets(config.webhooks_key), token, config.webhooks_private == "allow")


def escrow_services(dependencies: Dependencies, escrow: Escrow | None, posted: PostedJobs) -> EscrowServices | None:
    if escrow is None:
        return None
    book = dependencies.config.addresses
    # If several nodes are configured, two must agree on the claim, because a key that was released for a wrong claim
    # cannot be taken back.
    agreed = Rpc(dependencies.nodes.agreed_transport()) if len(dependencies.nodes.all) > 1 else posted.registry.rpc
    claims = ClaimReader(
        JobRegistry(agreed, book.job_registry),
        ProviderRegistry(agreed, book.provider_registry),
        dependencies.config.confirmations,
    )
    releases = ReleaseService(
        domains=dependencies.domains,
        chain_id=book.chain_id,
        registry=book.job_registry,
        custody=escrow.custody,
        claim_reader=claims,
        posted_jobs=posted,
        clock=system_clock,
    )
    return EscrowServices(escrow, releases, system_clock)
