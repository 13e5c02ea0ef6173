"""A relayer with its dependencies and the services' interface to it, in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import anyio
import attrs

from common.address_book import AddressBook
from common.secp256k1 import Wallet
from coordinatord.base.wake import Wake
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.agreement import CheckedSource
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, run_indexer
from coordinatord.chain.relayer import queue_sql, transactions_sql
from coordinatord.chain.relayer.budgets import GasBudgets, GasPolicy
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling
from coordinatord.chain.relayer.in_flight import PendingTx, SignedVersion
from coordinatord.chain.relayer.outbox_sql import NewRelay, QueueOutcome, submit_all
from coordinatord.chain.relayer.relaying import Relaying, RelayMined
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.signers import AccountSigner, WalletSigner
from coordinatord.chain.relayer.worker import run_relayer
from coordinatord.chain.rpc.client import Rpc, open_rpc
from coordinatord.chain.rpc.nodes import Nodes, open_nodes
from coordinatord.chain.rpc.pinned import PinnedRpc
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.notices import Notices
from devnet.anvil import CHAIN_ID, Anvil
from devnet.world import World
from tests.integration.coordinatord.relayer.ops import Ops, hexed
from tests.support.faults.rpc_proxy import RpcProxy, rpc_proxy
from tests.support.invariants.relays import relay_violations

UNLIMITED: Final = GasPolicy(
    posts_daily_gas=0,
    work_daily_gas=0,
    upkeep_daily_gas=0,
    unlisted_upkeep_daily_gas=0,
    newcomers_daily_gas=0,
    daily_gas_per_settled_job=0,
    hourly_percent=100,
)
# Pretend that an index is ahead of every block, so that tests without an index do not wait for one.
_INDEX_FAR_AHEAD = (
    "insert into index_position (block_number, block_hash, block_time) values (1000000000, '', 0)"
    " on conflict do nothing"
)


# Insert a booking of a post's gas. Parameters: signer, gas, hours ago.
BOOK: Final = (
    "with tx as (insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost)"
    " select 0, 'booked', count(*), '', '', 0, 'foreign', true from relay_txs returning id)"
    " insert into gas_bookings (tx_id, signer, kind, newcomer, hour, gas)"
    " select id, $1::bytea, 'post', false, current_hour() - $3::integer, $2::bigint from tx"
)
BROADCAST: Final = "select count(*) = $1 from relay_txs where broadcast_at is not null"


@attrs.frozen
class Stage:
    """Database, node and relaying service of the relayer tests.

    `relaying` accepts ops. `start(signer)` adds a relayer for that account, which ends with the stage.
    """

    database: Database
    notices: Notices
    relaying: Relaying
    rpc: Rpc
    settings: RelayerSettings
    tasks: anyio.abc.TaskGroup

    def start(
        self, by: Wallet | AccountSigner, role: RelayerRole | None = None, *, replacements_only: bool = False
    ) -> anyio.CancelScope:
        scope = anyio.CancelScope()
        signer = WalletSigner(by) if isinstance(by, Wallet) else by
        settings = attrs.evolve(self.settings, replacements_only=replacements_only)

        async def run() -> None:
            with scope:
                await run_relayer(
                    self.database, self.notices, self.rpc, signer, chain_id=CHAIN_ID, settings=settings, role=role
                )

        self.tasks.start_soon(run)
        return scope

    async def fetchval(self, query: str, *arguments: object) -> object:
        async with self.database.connection() as connection:
            return await connection.fetchval(query, *arguments)

    async def until(self, query: str, *arguments: object) -> None:
        """Wait until the query's value is true."""
        while not await self.fetchval(query, *arguments):  # noqa: ASYNC110 - the event is in another process's hands
            await anyio.sleep(0.02)

    async def queue(self, relays: Sequence[NewRelay]) -> None:
        """Queue these relays together."""
        await self.database.transact(lambda connection: submit_all(connection, relays, max_depth=4096))

    @asynccontextmanager
    async def relayed(self, *ops: NewRelay) -> AsyncIterator[None]:
        """Relay these ops next to the block. Afterwards all must be mined."""
        outcomes: list[object] = []
        async with anyio.create_task_group() as callers:
            for op in ops:
                callers.start_soon(relay_into(self, outcomes), op)
            yield
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * len(ops)


@asynccontextmanager
async def stage(
    database_url: str,
    rpc_url: str | Sequence[str],
    *,
    max_depth: int = 4096,
    queue_timeout_ms: int = 30_000,
    coalesce_max: int = 64,
    reserve_gas: int = 30_000_000,
    cancel_reserve_gas: int = 10_000_000,
    fee_ceiling: FeeCeiling = NO_CEILING,
    timeout_s: float = 5.0,
    receipt_wait_s: float = 60.0,
    mined_within_s: float = 15.0,
    index: AddressBook | None = None,
    policy: GasPolicy = UNLIMITED,
) -> AsyncIterator[Stage]:
    settings = RelayerSettings(
        coalesce_max=coalesce_max,
        queue_timeout_ms=queue_timeout_ms,
        block_time_ms=400,
        reserve_gas=reserve_gas,
        cancel_reserve_gas=cancel_reserve_gas,
        fee_ceiling=fee_ceiling,
        mined_within_s=mined_within_s,
    )
    async with (
        open_database(database_url, max_size=8) as database,
        _open(rpc_url, timeout_s) as (rpc, nodes),
    ):
        async with database.pool.acquire() as connection:
            await migrate(connection)
            if index is None:
                await connection.execute(_INDEX_FAR_AHEAD)
        notices = Notices()
        relaying = Relaying(
            database,
            notices,
            budgets=GasBudgets(database, policy),
            max_depth=max_depth,
            queue_timeout_ms=queue_timeout_ms,
            receipt_wait_s=receipt_wait_s,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(notices.listen, database)
            tasks.start_soon(relaying.run)
            if index is not None:
                source = (
                    NodeSource(rpc, LogDecoder(index)) if nodes is None else CheckedSource(nodes, LogDecoder(index))
                )
                tasks.start_soon(run_indexer, database, source, _settings_of_index(index), notices, Wake())
            if nodes is not None:
                tasks.start_soon(nodes.watch_heads, CHAIN_ID, 0.2)
            yield Stage(database, notices, relaying, rpc, settings, tasks)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open(urls: str | Sequence[str], timeout_s: float) -> AsyncIterator[tuple[Rpc, Nodes | None]]:
    """Open one node, or several as the daemon does."""
    if isinstance(urls, str):
        async with open_rpc(urls, timeout_s=timeout_s) as rpc:
            yield rpc, None
    else:
        async with open_nodes(urls, timeout_s=timeout_s) as nodes:
            yield PinnedRpc(nodes), nodes


def _settings_of_index(book: AddressBook) -> IndexerSettings:
    return IndexerSettings(
        chain_id=book.chain_id,
        deploy_block=book.deploy_block,
        max_range_blocks=5000,
        block_time_ms=400,
        confirmations=0,
        journal_blocks=64,
    )


@attrs.frozen
class Scene:
    """The open market with an empty database. `client` and `provider` sign the ops."""

    world: World
    database_url: str
    ops: Ops
    relayer: Wallet
    client: Wallet
    provider: Wallet

    @property
    def anvil(self) -> Anvil:
        return self.world.anvil

    @property
    def account(self) -> str:
        """Address of the relayer."""
        return hexed(self.relayer.address)

    def stage(self, rpc_url: str | Sequence[str] = "", **settings: Any) -> AbstractAsyncContextManager[Stage]:
        return stage(self.database_url, rpc_url or self.anvil.rpc_url, **settings)

    @asynccontextmanager
    async def stage_behind_proxy(self, **settings: Any) -> AsyncIterator[tuple[Stage, RpcProxy]]:
        """Run a stage whose node requests pass through a proxy. Yield the stage and the proxy."""
        async with rpc_proxy(self.anvil.rpc_url) as proxy, self.stage(proxy.url, **settings) as opened:
            yield opened, proxy

    async def check(self, stage: Stage) -> None:
        """Compare the outbox with the chain, through a connection without the stage's faults and timeouts."""
        async with open_rpc(self.anvil.rpc_url) as rpc, stage.database.connection() as connection:
            assert await relay_violations(connection, rpc, stuck_after=0) == []

    def post(self, **changed: Any) -> NewRelay:
        return self.ops.post(self.client, **changed)

    def claim(self, job: bytes) -> NewRelay:
        return self.ops.claim(self.provider, job)

    def settle(self, job: bytes) -> NewRelay:
        return self.ops.settle(self.provider, job)

    def fail(self, job: bytes) -> NewRelay:
        return self.ops.fail(self.provider, job)

    def cancel(self, job: bytes) -> NewRelay:
        return self.ops.cancel(self.client, job)

    def request_capacity(self, n: int = 5, *, issued_at: int | None = None) -> NewRelay:
        return self.ops.request_capacity(self.provider, n, issued_at=issued_at)


async def insert_signed(connection: Connection, account: bytes, nonce: int, relays: Sequence[int]) -> PendingTx:
    """Insert a transaction that carries these relays."""
    version = SignedVersion(nonce.to_bytes(32, "big"), b"raw", 10, 1, is_self_transfer=False)
    tx = PendingTx(0, nonce, b"", 100_000, [version], b"data")
    await transactions_sql.insert_transactions(connection, 1, account, [tx])
    places = [None] if len(relays) == 1 else list(range(len(relays)))
    bindings = [(relay, tx.id, place) for relay, place in zip(relays, places, strict=True)]
    await queue_sql.mark_signed(connection, bindings)
    return tx


async def submit(connection: Connection, relay: NewRelay, *, max_depth: int = 10) -> QueueOutcome:
    (outcome,) = await submit_all(connection, [relay], max_depth=max_depth)
    return outcome


def relay_into(stage: Stage, outcomes: list[object]) -> Callable[[NewRelay], Awaitable[None]]:
    """Relay an op in a task, and append the outcome."""

    async def relay(op: NewRelay) -> None:
        outcomes.append(await stage.relaying.relay(op))

    return relay


async def mine_until_ended(stage: Stage, anvil: Anvil) -> None:
    while await stage.fetchval("select count(*) from relays where state in ('queued', 'signed')"):
        await anvil.call("evm_mine")
        await anyio.sleep(0.05)
