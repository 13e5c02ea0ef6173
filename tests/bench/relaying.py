"""Relaying by one account: ops per second, and the share of a block's gas that is used at saturation.

Posts are queued before the relayer starts. Its work is simulation, signing, storing, broadcast, block following,
receipts, and the end of each op in the outbox. The node and PostgreSQL share the machine. A full block is mined when
more is pending than fits, so its gas does not depend on the machine's speed.

A node includes a transaction if its gas limit fits, so gas that was planned and not used is lost to the last
transaction of each block. anvil sometimes skips a small transaction that would fit after a large one of the same
account. To avoid this, all transactions here have the same number of ops.
"""

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import anyio
import attrs

from common.secp256k1 import Wallet
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.rpc.client import decode_quantity
from coordinatord.storage.database.connections import Connection
from devnet import accounts
from devnet.anvil import BLOCK_GAS_LIMIT, Anvil, running_anvil
from devnet.app import deploy_market
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.row import Row
from tests.integration.coordinatord.relayer.ops import Ops, signer
from tests.integration.coordinatord.relayer.running import Stage, stage
from tests.support.services import rooms

ROOMY_BLOCK_GAS: Final = 1_000_000_000  # never full, so that the gas limit is not measured
CHAIN_BLOCK_S: Final = 12  # block time of the chain that the ops per second are compared with
PARTS: Final = 4  # of the seconds that are measured
PART_S: Final = 2.0
SIGNING_S: Final = 4.0  # CPU to sign queued posts: more posts than are relayed in the measured seconds
FULL_BLOCKS: Final = 5
_POSTS_PER_TX: Final = 64  # a round takes 512
_PENDING_TXS: Final = 20  # more than fit in a block
_PIECE: Final = 512
_DEPTH: Final = 1_000_000
_TIMEOUT_S: Final = 120.0
_MINED: Final = "select count(*) from relays where state = 'mined'"
_WAITING: Final = "select count(*) from relays where state = 'queued'"


@attrs.frozen
class Scene:
    """A market, and a relayer with a full queue at its start."""

    anvil: Anvil
    stage: Stage

    async def ops_per_second(self) -> list[float]:
        """Return the relayed ops per second in each part of the time, while posts are waiting."""
        await self.anvil.mine_every(1)
        await self.stage.until(f"select ({_MINED}) > 0")
        marks = [await self._mark()]
        for _ in range(PARTS):
            await anyio.sleep(PART_S)
            if not await self._count(_WAITING):
                break
            marks.append(await self._mark())
        return [(after - before) / (late - early) for (early, before), (late, after) in pairwise(marks)]

    async def gas_per_op(self) -> float:
        """Return the gas of all mined blocks, per relayed op."""
        await self.anvil.call("evm_setIntervalMining", 0)
        async with self.stage.database.connection() as connection:
            row = await connection.fetchrow(
                "select min(t.block_number) as first, max(t.block_number) as last, count(*) as ops"
                " from relays r join relay_txs t on t.id = r.tx_id where r.state = 'mined'"
            )
        assert row is not None
        return sum([await self._gas(number) for number in range(row["first"], row["last"] + 1)]) / int(row["ops"])

    async def full_blocks(self) -> list[float]:
        """Return the gas used by blocks that are each mined once more transactions are pending than fit."""
        used = []
        with anyio.fail_after(_TIMEOUT_S):
            for _ in range(FULL_BLOCKS):
                while await self._pending() < _PENDING_TXS:  # noqa: ASYNC110 - the node does not tell
                    await anyio.sleep(0.02)
                await self.anvil.call("evm_mine")
                used.append(await self._gas(decode_quantity(await self.anvil.call("eth_blockNumber"))))
        return used

    async def _mark(self) -> tuple[float, int]:
        return time.monotonic(), await self._count(_MINED)

    async def _count(self, query: str) -> int:
        return int(str(await self.stage.fetchval(query)))

    async def _pending(self) -> int:
        return decode_quantity((await self.anvil.call("txpool_status"))["pending"])

    async def _gas(self, number: int) -> float:
        return float(decode_quantity((await self.anvil.call("eth_getBlockByNumber", hex(number), False))["gasUsed"]))


@asynccontextmanager
async def scene(block_gas_limit: int) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory() as name:
        directory = rooms(Path(name))
        async with (
            running_anvil(pick_free(), directory / "anvil", directory, block_gas_limit=block_gas_limit) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
        ):
            wallets = accounts.derive_wallets()
            market = await deploy_market(anvil, wallets)
            async with stage(
                postgres.url(), anvil.rpc_url, max_depth=_DEPTH, queue_timeout_ms=600_000, coalesce_max=_POSTS_PER_TX
            ) as running:
                await anvil.call("evm_setAutomine", False)
                await _fill(running, Ops.of(market), signer(wallets.with_role("client")[0]))
                running.start(signer(wallets.with_role("relayer")[0]))
                yield Scene(anvil, running)


async def _fill(running: Stage, ops: Ops, owner: Wallet) -> None:
    """Queue as many posts as can be signed in `SIGNING_S`. Signing takes a fraction of the CPU of relaying."""
    until = time.process_time() + SIGNING_S
    while time.process_time() < until:
        await running.database.transact(partial(_queue, [ops.post(owner) for _ in range(_PIECE)]))


async def _queue(posts: list[NewRelay], connection: Connection) -> None:
    await outbox_sql.submit_all(connection, posts, max_depth=_DEPTH)


async def _measured() -> tuple[list[float], float, list[float]]:
    async with scene(ROOMY_BLOCK_GAS) as roomy:
        rates = await roomy.ops_per_second()
        gas_per_op = await roomy.gas_per_op()
    async with scene(BLOCK_GAS_LIMIT) as tight:
        return rates, gas_per_op, await tight.full_blocks()


def rows() -> list[Row]:
    rates, gas_per_op, full = anyio.run(_measured, backend_options={"use_uvloop": True})
    fit = BLOCK_GAS_LIMIT / gas_per_op / CHAIN_BLOCK_S
    chain = f"posts that fit in blocks of 60 M gas each {CHAIN_BLOCK_S} s ({fit:.0f}/s)"
    return [
        Row.of("relayed ops per second", rates, "ops/s", chain, fit, target=4),
        Row.of("gas of a block used at saturation", full, "gas", "the block's gas limit", BLOCK_GAS_LIMIT, target=0.85),
    ]
