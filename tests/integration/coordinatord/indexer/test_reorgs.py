"""Reorgs of a real chain. Afterwards the index equals a fresh replay and agrees with the registries."""

from typing import Final

import pytest

from devnet.contracts import contract_at
from tests.integration.coordinatord.indexer.index_rows import index_rows
from tests.integration.coordinatord.indexer.scene import Scene

pytestmark = pytest.mark.anyio


async def test_index_of_a_busy_market_agrees_with_the_registries(scene: Scene) -> None:
    await scene.play(60, 60)
    await scene.follower.catch_up(scene.connection)
    await scene.check()


# Around the batch sizes for reading headers (16) and applying blocks (32), and deep ones. On an in-memory chain all
# depths are tried.
DEPTHS: Final = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 49, 50)


@pytest.mark.long
async def test_reorgs_of_depths_up_to_50_leave_a_fresh_replay(scene: Scene) -> None:
    """The chain grows by a block for each depth, so that a replay stays short."""
    anvil, connection = scene.world.anvil, scene.connection
    await scene.play(12, 12)
    await scene.follower.catch_up(connection)
    for depth in DEPTHS:
        for length in (depth, depth + 1):
            snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
            await scene.play(length, 4)
            await scene.follower.catch_up(connection)
            if length > depth:
                await scene.check_replay()
            await anvil.call("evm_revert", snapshot)
            scene.moves = before
        await scene.play(1, 1)
    await scene.play(60, 4)
    await scene.follower.catch_up(connection)
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
    jobs = contract_at(scene.moves.chain, "JobRegistry", scene.world.market.jobs)
    data = jobs.encode_abi("settle", [scene.moves.terms[job], 1, 0, "AAAA", b""]).replace("41414141", "41ff0041")
    await scene.moves.chain.web3.eth.wait_for_transaction_receipt(
        await scene.moves.chain.web3.eth.send_transaction({"from": provider.address, "to": jobs.address, "data": data})
    )
    await scene.follower.catch_up(scene.connection)
    assert await scene.connection.fetchval("select result_cid from jobs where job_id = $1", job) == "A\ufffd\ufffdA"
