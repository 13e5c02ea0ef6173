"""Dependencies of every service: database, node, pin store, keys; opened and checked before anything is served."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import structlog

from common.domains import Domains
from common.secp256k1 import Wallet
from coordinatord.base.concurrency import Patience
from coordinatord.chain.boot import check_chain
from coordinatord.chain.rpc import Rpc, open_rpc
from coordinatord.config import Config
from coordinatord.database.connections import Database, open_database
from coordinatord.database.migrate import migrate
from coordinatord.database.notices import Notices
from coordinatord.files.files import FileStore
from coordinatord.pins.containers import Containers, StorageBudgets
from coordinatord.pins.store import PinStore, open_pin_store

log = structlog.get_logger(__name__)

_CONNECTIONS_FOR_CALLERS: Final = 32  # to the node


@attrs.frozen(slots=True)
class Dependencies:
    """Connections, keys and settings that the services share.

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


async def open_dependencies(config: Config, stack: AsyncExitStack) -> Dependencies:
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
    return Dependencies(
        config=config,
        domains=Domains.of(config.addresses),
        relayer=Wallet(bytes.fromhex(config.relayer_key.reveal())),
        database=database,
        rpc=rpc,
        rpc_for_callers=rpc_for_callers,
        pins=pins,
        notices=Notices(),
    )


async def prepare(dependencies: Dependencies, patience: Patience) -> None:
    """Migrations under their lock, and the chain held against the address book."""

    async def migrated() -> list[str]:
        async with dependencies.database.unhurried() as connection:
            return await migrate(connection)

    if applied := await patience.until("the database", migrated):
        log.info("migrated", applied=applied)
    config = dependencies.config
    await patience.until("the node", partial(check_chain, dependencies.rpc, config.addresses, dependencies.domains))


def files_of(dependencies: Dependencies) -> FileStore:
    config = dependencies.config
    budgets = StorageBudgets.of(config)
    return FileStore(dependencies.database, dependencies.pins, config.file_retention_seconds, budgets)


def containers_of(dependencies: Dependencies) -> Containers:
    config = dependencies.config
    budgets = StorageBudgets.of(config)
    return Containers(dependencies.database, dependencies.pins, config.file_retention_seconds, budgets)
