"""Reorganisations of the real chain: afterwards the index is a fresh replay's, and says what the registries say."""

import random
from collections.abc import AsyncIterator
from itertools import pairwise

import attrs
import pytest

from coordinatord.chain.decoding import Decoder
from coordinatord.chain.rpc import open_rpc
from coordinatord.indexer.fetch import Source
from coordinatord.indexer.follow import Follower, IndexerSettings, Wake
from coordinatord.store.database import Connection
from coordinatord.store.index.position import read_position
from devnet.anvil import CHAIN_ID
from devnet.contracts import at, connected
from devnet.world import World
from tests.integration.coordinatord.indexer.index_rows import forget, index_rows
from tests.integration.coordinatord.indexer.moves import Moves, address_book

pytestmark = pytest.mark.anyio

JOURNAL_BLOCKS = 64


@attrs.define
class Scene:
    """The market, someone who moves in it, and an index of it."""

    world: World
    moves: Moves
    source: Source
    connection: Connection
    follower: Follower

    def fresh_follower(self, journal_blocks: int = JOURNAL_BLOCKS) -> Follower:
        return follower_of(self.source, self.world, journal_blocks)

    async def play(self, blocks: int, moves: int) -> None:
        """So many blocks, some of them with a move in them."""
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
        """The index stands at the head, row by row as a fresh replay has it."""
        position = await read_position(self.connection)
        head = await self.moves.chain.web3.eth.get_block("latest")
        assert position is not None
        assert (position.block_number, position.block_hash) == (head["number"], bytes(head["hash"]))
        indexed = await index_rows(self.connection)
        await forget(self.connection)
        await self.fresh_follower().catch_up(self.connection)
        assert indexed == await index_rows(self.connection)

    async def check_registries(self) -> None:
        """The index says what the registries say."""
        chain, market = self.moves.chain, self.world.market
        jobs = at(chain, "JobRegistry", market.jobs).functions
        for row in await self.connection.fetch("select * from jobs"):
            assert await jobs.job(row["job_id"]).call() == (
                chain.web3.to_checksum_address(row["owner"]),
                row["model_id"],
                row["sla_secs"],
                row["state"],
                row["ended_because"],
                row["fee_bps"],
                int(row["rate_in"]),
                int(row["rate_out"]),
                row["units_in"],
                row["units_out"],
                row["designated"],
                row["provider_id"],
                row["expires_at"],
                row["claimed_at"],
                int(row["gas_fee"]),
            )
        assert await self.connection.fetchval("select count(*) from jobs") == len(self.moves.jobs)
        providers = at(chain, "ProviderRegistry", market.providers).functions
        rows = await self.connection.fetch("select * from providers")
        assert len(rows) == await providers.providerCount().call()
        asks = at(chain, "AskRegistry", market.asks).functions
        for row in rows:
            assert await providers.provider(row["provider_id"]).call() == (
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


def follower_of(source: Source, world: World, journal_blocks: int) -> Follower:
    settings = IndexerSettings(
        chain_id=CHAIN_ID,
        deploy_block=world.market.deploy_block,
        getlogs_cap=5000,
        block_time_ms=10,
        confirmations=0,
        journal_blocks=journal_blocks,
    )
    return Follower(source, settings, Wake())


@pytest.fixture
async def scene(world: World, connection: Connection) -> AsyncIterator[Scene]:
    async with connected(world.anvil.rpc_url) as chain, open_rpc(world.anvil.rpc_url) as rpc:
        accounts = await chain.web3.eth.accounts
        moves = Moves(chain, world, random.Random(7), newcomers=list(accounts[len(world.cast.wallets) :]))  # noqa: S311 - moves, not keys
        source = Source(rpc, Decoder(address_book(world)))
        yield Scene(world, moves, source, connection, follower_of(source, world, JOURNAL_BLOCKS))


async def test_index_of_a_busy_market_agrees_with_the_registries(scene: Scene) -> None:
    await scene.play(60, 60)
    await scene.follower.catch_up(scene.connection)
    await scene.check()


async def test_reorgs_of_depth_1_to_50_leave_a_fresh_replay(scene: Scene) -> None:
    anvil, connection = scene.world.anvil, scene.connection
    await scene.play(12, 12)
    await scene.follower.catch_up(connection)
    for depth in range(1, 51):
        snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
        await scene.play(depth, 4)
        await scene.follower.catch_up(connection)
        await anvil.call("evm_revert", snapshot)
        scene.moves = before
        await scene.play(depth + 1, 4)
        await scene.follower.catch_up(connection)
        await scene.check_replay()
    await scene.check_registries()


async def test_a_reorg_below_the_journal_rebuilds_the_index(scene: Scene) -> None:
    anvil, connection = scene.world.anvil, scene.connection
    scene.follower = scene.fresh_follower(journal_blocks=8)
    await scene.play(6, 6)
    snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
    await scene.play(20, 10)
    await scene.follower.catch_up(connection)
    await anvil.call("evm_revert", snapshot)
    scene.moves = before
    await scene.play(21, 10)
    await scene.follower.catch_up(connection)
    await scene.check()


async def test_a_chain_that_falls_back_and_forks_is_followed(scene: Scene) -> None:
    """The node first shows an older head of the same chain, then a shorter chain that differs."""
    anvil, connection = scene.world.anvil, scene.connection
    await scene.play(4, 4)
    snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
    await scene.play(9, 9)
    await scene.follower.catch_up(connection)
    at_tip = await index_rows(connection)
    await anvil.call("evm_revert", snapshot)
    await scene.follower.catch_up(connection)
    assert await index_rows(connection) == at_tip
    scene.moves = before
    await scene.play(3, 3)
    await scene.follower.catch_up(connection)
    await scene.check()


async def test_a_result_cid_that_is_no_text_does_not_stop_the_index(scene: Scene) -> None:
    await scene.moves.post()
    await scene.moves.claim()
    job, provider = scene.moves.claimed.pop()
    jobs = at(scene.moves.chain, "JobRegistry", scene.world.market.jobs)
    data = jobs.encode_abi("settle", [job, 1, 0, "AAAA", b""]).replace("41414141", "41ff0041")
    await scene.moves.chain.web3.eth.wait_for_transaction_receipt(
        await scene.moves.chain.web3.eth.send_transaction({"from": provider.address, "to": jobs.address, "data": data})
    )
    await scene.follower.catch_up(scene.connection)
    assert await scene.connection.fetchval("select result_cid from jobs where job_id = $1", job) == "A\ufffd\ufffdA"
