"""A market with simulated activity, an index of it as comparable values, and checks that the index agrees with the
contracts."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import asyncpg
import attrs

from common.artifacts import decode_error_name
from coordinatord.base.wake import Wake
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower, run_indexer
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.indexer.undo_sql import UNDOABLE_TABLES
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from devnet.anvil import CHAIN_ID, FUNDED_ACCOUNT_COUNT
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.indexer.moves import Moves, address_book

Rows = dict[str, list[tuple[Any, ...]]]
# Sums of the job rows. They match a fresh replay only if they are correct.
_SUMS = {"job_counts": ("list", "key", "bits", "chunk", "state"), "owner_sums": ("owner", "model_id")}


async def index_rows(
    connection: "asyncpg.Connection[asyncpg.Record]", columns: Mapping[str, str] | None = None
) -> Rows:
    """Return all tables filled from the chain, their counts, and the position, each sorted by key. `columns` has the
    names of the wanted columns by table."""
    wanted = columns or {}
    tables: dict[str, tuple[str, ...]] = {**UNDOABLE_TABLES, **_SUMS, "index_position": ("only_row",)}
    return {
        table: [
            tuple(row)
            for row in await connection.fetch(f"select {wanted.get(table, '*')} from {table} order by {', '.join(key)}")  # noqa: S608 - constants
        ]
        for table, key in tables.items()
    }


async def forget(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Reset the index to its initial state."""
    tables = ", ".join({**UNDOABLE_TABLES, **_SUMS})
    await connection.execute(f"truncate {tables}, undo_journal, index_blocks, index_position")


JOURNAL_BLOCKS = 64


@attrs.define
class Scene:
    """The market, someone who moves in it, and an index of it."""

    world: World
    moves: Moves
    source: NodeSource
    connection: Connection
    follower: IndexFollower

    async def head(self) -> int:
        return await self.moves.chain.web3.eth.block_number

    def fresh_follower(self, journal_blocks: int = JOURNAL_BLOCKS) -> IndexFollower:
        return follower_of(self.source, self.world, journal_blocks)

    async def play(self, blocks: int, moves: int) -> None:
        """Mine this many blocks, some with a move."""
        moving = sorted(self.moves.random.sample(range(blocks), min(blocks, moves)))
        for block, after in pairwise([-1, *moving]):
            if after > block + 1:
                await self.world.anvil.call("anvil_mine", hex(after - block - 1))
            await self.moves.move()
        if moving[-1] < blocks - 1:
            await self.world.anvil.call("anvil_mine", hex(blocks - 1 - moving[-1]))

    async def check(self) -> None:
        await self.check_registries()
        await self.check_replay()

    async def check_replay(self) -> None:
        """Check that the index is at the head and equals a fresh replay."""
        position = await read_position(self.connection)
        head = await self.moves.chain.web3.eth.get_block("latest")
        assert position is not None
        assert (position.block_number, position.block_hash) == (head["number"], bytes(head["hash"]))
        indexed = await index_rows(self.connection)
        await forget(self.connection)
        await self.fresh_follower().catch_up(self.connection)
        assert indexed == await index_rows(self.connection)

    async def check_registries(self) -> None:
        """Check that the index agrees with the registries."""
        chain, market = self.moves.chain, self.world.market
        jobs = contract_at(chain, "JobRegistry", market.jobs).functions
        for row in await self.connection.fetch("select * from jobs"):
            told = (True, row["state"], row["ended_because"], row["provider_id"], row["claimed_at"])
            assert await jobs.job(row["job_id"]).call() == told
            order = [row[name] for name in ("c", "model_id", "sla_secs")]
            order += [int(row["rate_in"]), int(row["rate_out"])]
            order += [row[name] for name in ("units_in", "units_out", "designated", "expires_at")]
            owner = chain.web3.to_checksum_address(row["owner"])
            posted = (tuple(order), owner, row["fee_bps"], int(row["gas_fee"]))
            assert posted == self.moves.terms[row["job_id"]]
            if row["state"] == 0:  # the registry holds the same terms, otherwise it would not find the job
                refusal = await jobs.claimRefusal(posted, owner).call()
                assert decode_error_name(refusal) == "UnknownProvider"
        assert await self.connection.fetchval("select count(*) from jobs") == len(self.moves.jobs)
        providers = contract_at(chain, "ProviderRegistry", market.providers).functions
        rows = await self.connection.fetch("select * from providers")
        assert len(rows) == await providers.providerCount().call()
        asks = contract_at(chain, "AskRegistry", market.asks).functions
        for row in rows:
            told_of = await providers.provider(row["provider_id"]).call()
            assert told_of[:-1] == (  # the registry defines grace
                chain.web3.to_checksum_address(row["operator"]),
                row["box_key"] or bytes(32),
                row["listed"],
                row["allow_all_models"],
                row["reputation"],
                row["requested"],
                row["ceiling"],
                row["active_jobs"],
            )
            signed_at = await self.connection.fetchval(
                "select signed_at from ask_times where provider_id = $1", row["provider_id"]
            )
            assert await asks.latestSignedAt(row["provider_id"]).call() == (signed_at or 0)
            assert await providers.lastIdentityAt(row["provider_id"]).call() == row["identity_at"]
            assert await providers.lastCapacityAt(row["provider_id"]).call() == row["capacity_at"]
        fees = await self.connection.fetchrow("select fee_bps, gas_fee from fees")
        assert fees is not None
        assert await jobs.fees().call() == [fees["fee_bps"], int(fees["gas_fee"])]


def settings_of(world: World, journal_blocks: int = JOURNAL_BLOCKS) -> IndexerSettings:
    return IndexerSettings(
        chain_id=CHAIN_ID,
        deploy_block=world.market.deploy_block,
        max_range_blocks=5000,
        block_time_ms=10,
        confirmations=0,
        journal_blocks=journal_blocks,
    )


def follower_of(source: NodeSource, world: World, journal_blocks: int) -> IndexFollower:
    return IndexFollower(source, settings_of(world, journal_blocks), Wake())


@asynccontextmanager
async def open_scene(world: World, connection: Connection) -> AsyncIterator[Scene]:
    async with connect_to_chain(world.anvil.rpc_url) as chain, open_rpc(world.anvil.rpc_url) as rpc:
        # Without the accounts that other tests impersonate, which have no funds.
        newcomers = (await chain.web3.eth.accounts)[len(world.wallets.wallets) : FUNDED_ACCOUNT_COUNT]
        moves = Moves(chain, world, random.Random(7), newcomers=list(newcomers))  # noqa: S311 - moves, not keys
        source = NodeSource(rpc, LogDecoder(address_book(world)))
        yield Scene(world, moves, source, connection, follower_of(source, world, JOURNAL_BLOCKS))


@attrs.define
class Running:
    database: Database
    wake: Wake
    notices: Notices
    moved: anyio.Event = attrs.field(factory=anyio.Event)

    def hear(self, _block: str) -> None:
        self.moved.set()

    async def until_at(self, block: int) -> None:
        """Wait until the index has announced `block` and is ready to be read."""
        with anyio.fail_after(60):
            while True:
                async with self.database.connection() as connection:
                    position = await read_position(connection)
                if position is not None and position.block_number == block and not position.rebuilding:
                    return
                with anyio.move_on_after(0.5):  # a notice may come before this process listens
                    await self.moved.wait()
                self.moved = anyio.Event()


@asynccontextmanager
async def indexing(
    database: Database, source: NodeSource, world: World, *, block_time_ms: int = 10
) -> AsyncIterator[Running]:
    notices, wake = Notices(), Wake()
    running = Running(database, wake, notices)
    settings: IndexerSettings = attrs.evolve(settings_of(world), block_time_ms=block_time_ms)
    async with anyio.create_task_group() as tasks, notices.subscribe(INDEX_MOVED, running.hear):
        tasks.start_soon(notices.listen, database)
        tasks.start_soon(run_indexer, database, source, settings, notices, wake)
        yield running
        tasks.cancel_scope.cancel()
