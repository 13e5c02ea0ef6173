"""Dependencies of every service: database, node, pin store, keys; opened and checked before anything is served."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import structlog

from common import abi
from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from common.secp256k1 import Wallet
from coordinatord.base.concurrency import StartupPatience
from coordinatord.chain.contract_calls import Reverted, View, read_many
from coordinatord.chain.rpc import Rpc, open_rpc, quantity, retryable_of
from coordinatord.chain.rpc_errors import Meaning, RpcError
from coordinatord.config import Config
from coordinatord.database.connections import Database, open_database
from coordinatord.database.migrate import migrate
from coordinatord.database.notices import Notices
from coordinatord.files.files import FileStore
from coordinatord.pins.containers import Containers, StorageBudgets
from coordinatord.pins.store import PinStore, open_pin_store

# What must be true of the chain before anything is signed or verified for it.

_SEPARATOR = abi.selector("DOMAIN_SEPARATOR()")


async def check_chain(rpc: Rpc, book: AddressBook, domains: Domains) -> None:
    """Fatal, naming what differs: another chain, or a contract whose signing domain is not the address book's.

    Raises Retryable when the node does not answer, or answers with trouble of its own that may pass; the caller decides
    how long to wait for it.
    """
    try:
        chain_id = quantity(await rpc.call("eth_chainId"))
    except RpcError as error:
        if error.meaning is not Meaning.REFUSED:
            raise retryable_of(error, "eth_chainId") from error
        raise Fatal(f"the RPC endpoint does not tell its chain id: {error}") from error
    if chain_id != book.chain_id:
        raise Fatal(f"chainId: the address book is for chain {book.chain_id}, the RPC endpoint serves {chain_id}")
    expected = {
        "jobRegistry": (book.job_registry, domains.jobs.separator),
        "providerRegistry": (book.provider_registry, domains.providers.separator),
        "askRegistry": (book.ask_registry, domains.asks.separator),
        "paytoken": (book.paytoken, domains.token.separator),
    }
    views = [View(address, abi.call(_SEPARATOR), "config_read") for address, _ in expected.values()]
    for (name, (address, separator)), answer in zip(
        expected.items(), await read_many(rpc, views, "config_read"), strict=True
    ):
        if isinstance(answer, Reverted) or answer[:32] != separator:
            raise Fatal(
                f"{name}: the contract at {hex_of(address)} does not have the signing domain of the address book"
            )


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


async def prepare(dependencies: Dependencies, patience: StartupPatience) -> None:
    """Migrations under their lock, and the chain held against the address book."""

    async def migrated() -> list[str]:
        async with dependencies.database.unhurried() as connection:
            return await migrate(connection)

    if applied := await patience.retry_until_ready("the database", migrated):
        log.info("migrated", applied=applied)
    config = dependencies.config
    await patience.retry_until_ready(
        "the node", partial(check_chain, dependencies.rpc, config.addresses, dependencies.domains)
    )


def former_relayers(dependencies: Dependencies) -> list[Wallet]:
    """Accounts that were replaced and whose transactions are still followed."""
    wallets = [Wallet(bytes.fromhex(key.reveal())) for key in dependencies.config.former_relayer_keys]
    if any(wallet.address == dependencies.relayer.address for wallet in wallets):
        raise Fatal("FORMER_RELAYER_KEYS must not name the account that relays; take its key out of the list")
    return wallets


def files_of(dependencies: Dependencies) -> FileStore:
    config = dependencies.config
    budgets = StorageBudgets.of(config)
    return FileStore(dependencies.database, dependencies.pins, config.file_retention_seconds, budgets)


def containers_of(dependencies: Dependencies) -> Containers:
    config = dependencies.config
    budgets = StorageBudgets.of(config)
    return Containers(dependencies.database, dependencies.pins, config.file_retention_seconds, budgets)
