"""Folders and helpers for services that a test starts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from coordinatord.chain.rpc.client import decode_quantity, open_rpc
from devnet.anvil import Anvil


def rooms(directory: Path) -> Path:
    """Create the folders of a chain and a database server."""
    for part in ("anvil", "postgres"):
        (directory / part).mkdir()
    return directory


@asynccontextmanager
async def awake(anvil: Anvil) -> AsyncIterator[None]:
    """Wake up anvil. Under a burst, its automatic mining sometimes misses a wake-up, and transactions stay in the pool
    until a request."""

    async def nudge() -> None:
        while True:
            await anyio.sleep(0.1)
            if decode_quantity((await rpc.call_as(dict[str, str], "txpool_status"))["pending"]):
                await rpc.call("evm_mine")

    async with open_rpc(anvil.rpc_url) as rpc, anyio.create_task_group() as tasks:
        tasks.start_soon(nudge)
        yield
        tasks.cancel_scope.cancel()
