"""A relayer in a separate process that tests can kill: `python -m tests.support.faults.relayer_process`.

Reads DATABASE_URL, RPC_URL and RELAYER_KEY from the environment, as the coordinator does.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from common.daemon.logs import set_up_logging
from common.secp256k1 import Wallet
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.signers import WalletSigner
from coordinatord.chain.relayer.worker import run_relayer
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.notices import Notices
from devnet.anvil import CHAIN_ID


@asynccontextmanager
async def relayer_process(database_url: str, rpc_url: str, key: str) -> AsyncIterator[anyio.abc.Process]:
    """Run a relayer until the block ends or the test kills it."""
    environment = {**os.environ, "DATABASE_URL": database_url, "RPC_URL": rpc_url, "RELAYER_KEY": key}
    command = [sys.executable, "-m", "tests.support.faults.relayer_process"]
    async with await anyio.open_process(command, env=environment, stdout=None, stderr=None) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def kill_9(process: anyio.abc.Process) -> None:
    process.kill()
    await process.wait()


async def _main() -> None:
    settings = RelayerSettings(coalesce_max=64, queue_timeout_ms=30_000, block_time_ms=400)
    async with (
        open_database(os.environ["DATABASE_URL"], max_size=4) as database,
        open_rpc(os.environ["RPC_URL"], timeout_s=60) as rpc,
        anyio.create_task_group() as tasks,
    ):
        notices = Notices()
        tasks.start_soon(notices.listen, database)
        wallet = Wallet(bytes.fromhex(os.environ["RELAYER_KEY"].removeprefix("0x")))
        await run_relayer(database, notices, rpc, WalletSigner(wallet), chain_id=CHAIN_ID, settings=settings)


if __name__ == "__main__":
    set_up_logging("info")
    anyio.run(_main, backend_options={"use_uvloop": True})
