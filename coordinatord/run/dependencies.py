"""Open and check the dependencies of all services before serving: database, nodes, pin store and keys."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import structlog

from common.daemon.logs import log_task_failure
from common.daemon.secrets import Secret
from common.daemon.supervision import Supervisor
from common.domains import Domains
from coordinatord.api.book.liveness import LivenessRecorder
from coordinatord.api.book.pending_offers import MAX_UNSTORED_OFFERS, PendingOffers
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.waiting import WaitingPolls
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.progress_hub import ProgressHub
from coordinatord.api.files.files import FileStore
from coordinatord.api.tabs.mailbox import TabMailbox
from coordinatord.base import metrics
from coordinatord.base.startup import StartupRetry
from coordinatord.base.wake import Mailbox
from coordinatord.chain.relayer.role import RelayerRole, relayer_role_of
from coordinatord.chain.relayer.signers import AccountSigner
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.nodes import Nodes, open_nodes
from coordinatord.chain.rpc.pinned import PinnedRpc
from coordinatord.run.chain_checks import check_nodes
from coordinatord.run.config import Config
from coordinatord.run.constructors import storage_budgets
from coordinatord.run.signer import open_signer
from coordinatord.storage.database.connections import Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.notices import Notices
from coordinatord.storage.database.replicas import Replica, open_replicas
from coordinatord.storage.pins.addressed import PlainS3Store
from coordinatord.storage.pins.containers import Containers
from coordinatord.storage.pins.kubo import open_kubo
from coordinatord.storage.pins.pinned_sql import KeyMap, PinnedKeys
from coordinatord.storage.pins.store import PinningStore, PinStore, open_bucket

log = structlog.get_logger(__name__)

_CALLERS_NODE_CONNECTIONS: Final = 32


@attrs.frozen(slots=True)
class Dependencies:
    """Connections, signers and settings that the services share.

    `rpc` uses any healthy node. `rpc_for_callers` uses the same nodes through separate connections, so that requests of
    callers do not delay the relayer, the indexer and the readiness check.
    """

    config: Config
    domains: Domains
    relayer: AccountSigner
    database: Database
    replicas: Sequence[Replica]
    nodes: Nodes
    rpc: Rpc
    rpc_for_callers: Rpc
    pins: PinStore
    notices: Notices
    relayer_role: RelayerRole = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: relayer_role_of(self.config.addresses, self.relayer.address), takes_self=True
        ),
    )
    events: EventHub = attrs.field(
        init=False, default=attrs.Factory(lambda self: EventHub(self.database, self.notices), takes_self=True)
    )
    progress: ProgressHub = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: ProgressHub(self.database, self.notices), takes_self=True),
    )
    tabs: TabMailbox = attrs.field(
        init=False, default=attrs.Factory(lambda self: TabMailbox(self.database, self.events), takes_self=True)
    )
    supervisor: Supervisor = attrs.field(init=False, factory=lambda: Supervisor(_count_task_failures, log_task_failure))
    waiting_polls: WaitingPolls = attrs.field(init=False, factory=WaitingPolls)
    pending_offers: PendingOffers = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: PendingOffers(self.database, self.waiting_polls.wake_for_offer), takes_self=True
        ),
    )
    liveness: LivenessRecorder = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: LivenessRecorder(self.database, self.config.match_liveness_ms), takes_self=True
        ),
    )
    offer_mailbox: Mailbox[PendingJob] = attrs.field(init=False, factory=lambda: Mailbox(MAX_UNSTORED_OFFERS))


def _count_task_failures(task: str, number: int) -> None:
    metrics.task_failures.labels(task).inc(number)


async def open_dependencies(config: Config, stack: AsyncExitStack) -> Dependencies:
    """Open all connections. `stack` closes them in reverse order. Raise Retryable if the database does not answer."""
    database = await stack.enter_async_context(
        open_database(config.database_url.reveal(), max_size=config.database_pool_max)
    )
    replicas = await stack.enter_async_context(
        open_replicas([url.reveal() for url in config.database_replica_urls], max_size=config.database_pool_max)
    )
    pins = await open_pin_store(config, PinnedKeys(database), stack)
    nodes = await stack.enter_async_context(
        open_nodes(
            config.node_urls, client_connections=_CALLERS_NODE_CONNECTIONS, max_lag_blocks=config.limits.rpc_lag_blocks
        )
    )
    return Dependencies(
        config=config,
        domains=Domains.of(config.addresses),
        relayer=await stack.enter_async_context(open_signer(config)),
        database=database,
        replicas=replicas,
        nodes=nodes,
        rpc=Rpc(nodes.transport()),
        rpc_for_callers=Rpc(nodes.transport(for_clients=True)),
        pins=pins,
        notices=Notices(),
    )


async def open_pin_store(config: Config, keys: KeyMap, stack: AsyncExitStack) -> PinStore:
    """Open the pin store of the configured kind. `keys` maps object keys to content ids, for stores that find
    objects only by content id."""
    endpoint = config.pin_store_endpoint
    user, password = config.pin_store_key or Secret(""), config.pin_store_secret or Secret("")
    if config.pin_store == "kubo":
        return await stack.enter_async_context(open_kubo(endpoint, user, password, keys))
    bucket = open_bucket(endpoint, config.pin_store_bucket or "", user, password, config.pin_store_region)
    requests = await stack.enter_async_context(bucket)
    return PinningStore(requests) if config.pin_store == "filebase" else PlainS3Store(requests, keys)


async def migrate_and_check_chain(dependencies: Dependencies, startup: StartupRetry) -> None:
    """Migrate the database, and check the chain against the address book."""

    async def migrate_database() -> list[str]:
        async with dependencies.database.connection_without_timeout() as connection:
            return await migrate(connection)

    if applied := await startup.retry_until_ready("the database", migrate_database):
        log.info("database migrated", applied=applied)
    config = dependencies.config
    await startup.retry_until_ready(
        "the node", partial(check_nodes, dependencies.nodes, config.addresses, dependencies.domains)
    )


def relayer_rpc(dependencies: Dependencies) -> Rpc:
    """Return the relayer's RPC client. If there are several nodes, the client sends all requests of one decision
    (e.g. nonce, receipt and simulation) to the same node."""
    nodes = dependencies.nodes
    return PinnedRpc(nodes) if len(nodes.all) > 1 else dependencies.rpc


async def watch_nodes(dependencies: Dependencies) -> None:
    config = dependencies.config
    await dependencies.nodes.watch_heads(config.addresses.chain_id, min(max(config.block_time_ms / 1000, 0.5), 5.0))


def build_file_store(dependencies: Dependencies) -> FileStore:
    config = dependencies.config
    budgets = storage_budgets(config)
    return FileStore(dependencies.database, dependencies.pins, config.file_retention_seconds, budgets)


def build_containers(dependencies: Dependencies) -> Containers:
    config = dependencies.config
    budgets = storage_budgets(config)
    return Containers(dependencies.database, dependencies.pins, config.file_retention_seconds, budgets)
