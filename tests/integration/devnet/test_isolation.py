"""Each test sees the shared services in their initial state."""

import asyncpg
import pytest

from devnet.anvil import Anvil


@pytest.fixture(scope="module")
def blocks_seen() -> list[str]:
    return []


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_chain_is_set_back_after_a_test_mined(anvil: Anvil, blocks_seen: list[str], turn: str) -> None:
    blocks_seen.append(await anvil.call("eth_blockNumber"))
    await anvil.call("anvil_mine", "0x5")
    assert len(set(blocks_seen)) == 1


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_database_is_empty_after_a_test_made_tables(database_url: str, turn: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("create table left_over (id int)")
    finally:
        await connection.close()
