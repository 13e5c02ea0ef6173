"""Blocks only when a test wants one, and what waits for the next."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from devnet.anvil import Anvil


@asynccontextmanager
async def mining_by_hand(anvil: Anvil) -> AsyncIterator[None]:
    """No block but by `evm_mine`, until the block ends; the shared chain then mines each transaction again."""
    base_fee = (await anvil.call("eth_feeHistory", "0x1", "latest", []))["baseFeePerGas"][-1]
    await anvil.call("evm_setAutomine", False)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):  # the chain is other tests' too, however this one ends
            await anvil.call("evm_setAutomine", True)
            await anvil.call("anvil_dropAllTransactions")
            await anvil.call("anvil_setNextBlockBaseFeePerGas", base_fee)  # a snapshot does not bring it back


async def pooled(anvil: Anvil) -> int:
    """How many transactions the next block would hold."""
    return int((await anvil.call("txpool_status"))["pending"], 16)


async def until_pooled(anvil: Anvil) -> None:
    while await pooled(anvil) == 0:  # noqa: ASYNC110 - the event is in the node
        await anyio.sleep(0.02)
