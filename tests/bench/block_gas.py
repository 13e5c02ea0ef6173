"""Gas used in blocks under relayer load, with limits of a public chain: 60 million a block, 2^24 a transaction.

Saturated: more posts than several blocks hold are queued at once, and then more chains of post, claim and settle. The
share is the block gas used by its transactions. A node includes a transaction if its gas limit fits, so planned but
unused gas is lost to the last transaction of each block. anvil sometimes skips a small transaction that would fit after
a large one of the same account. To avoid this, all transactions here have the same number of ops.

Batch: posts of all lines are queued at once, two accounts relay them, and single posts arrive one after another, each
with a waiting caller. `BENCH_LINES=50000` makes it as long as the longest allowed batch.

At 80 % load: posts arrive by a Poisson process, each with a caller that waits for its end. The load is 80 % of the
posts that a saturated block held.
"""

import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
from anyio.from_thread import start_blocking_portal

from common.secp256k1 import Wallet
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority
from coordinatord.chain.rpc.client import quantity
from coordinatord.storage.database.connections import Connection
from devnet.anvil import BLOCK_GAS_LIMIT
from devnet.contracts import at, connected
from tests.bench.relaying import Ground, ground, mined
from tests.bench.row import Row, parts
from tests.integration.coordinatord.relayer.ops import Ops, hexed
from tests.integration.coordinatord.relayer.running import Stage, stage

BLOCK_SECONDS: Final = 2
FULL_BLOCKS: Final = 5  # the first and the last of them are partly filled
POSTS_A_BLOCK: Final = 1024  # approximate capacity of a block, in whole rounds
CHAINS_A_BLOCK: Final = 416  # the same
LOAD: Final = 0.8
LOADED_BLOCKS: Final = 4
LINES: Final = int(os.environ.get("BENCH_LINES", "3400"))
BATCH_BLOCK_SECONDS: Final = 4  # enough to sign a block's posts on a busy machine
_LONE_CALLERS: Final = 4
_PARTS: Final = 5  # of the callers, in order of their end
LONE_SECONDS: Final = 0.05  # beyond a block, for the steps of a single op
_POSTS: Final = 64  # in a transaction; a round takes 512
_CHAINS: Final = 16  # in a transaction, of three ops each; a round takes 512
_DEPTH: Final = 100_000
_CEILING: Final = 100_000  # of claimed jobs per provider
_BLOCKS: Final = f"a queue of {_DEPTH:,}, blocks of 60 M gas"
_OF_BATCHES: Final = "select exists (select from relays where priority = 3 and state = 'queued')"
ENDED: Final = "select count(*) = 0 from relays where state in ('queued', 'signed')"


@attrs.frozen
class Filled:
    """Full blocks: gas used by each, and ops per block."""

    used: list[int]
    ops: float


@attrs.frozen
class Loaded:
    """Waiting times of callers in seconds, in order of their end, and this load's share of block gas."""

    waited: list[float]
    share: float

    def slow(self, many: int) -> list[float]:
        """Return the 99th percentile in each of this many parts."""
        return [sorted(part)[len(part) * 99 // 100] for part in parts(self.waited, many)]


@attrs.frozen
class Beside:
    """A batch's posts, and the waiting times of concurrent single posts in seconds."""

    ops: int  # in the blocks that had enough of them
    used: list[int]  # gas used by each of these blocks
    accounts: list[float]  # lines that each account relayed
    waited: list[float]  # in order of their end


@asynccontextmanager
async def relayer(on: Ground, *accounts: Wallet, coalesce_max: int) -> AsyncIterator[Stage]:
    """Start a relayer for each account. Their queue is deep enough for all ops."""
    name = f"bench_{accounts[0].address.hex()}_{len(accounts)}"
    await on.postgres.execute(f"create database {name}")
    url, queue_timeout_ms = on.postgres.url(name), 600_000
    async with stage(
        url, on.anvil.rpc_url, max_depth=_DEPTH, queue_timeout_ms=queue_timeout_ms, coalesce_max=coalesce_max
    ) as running:
        for account in accounts:
            running.start(account)
        yield running


@attrs.frozen
class Scene:
    on: Ground
    stage: Stage
    ops: Ops

    def posts(self, count: int) -> list[NewRelay]:
        return [self.ops.post(self.on.outsider) for _ in range(count)]

    def chains(self, count: int) -> list[NewRelay]:
        """Make post, claim and settle of this many jobs, grouped by op as in a market."""
        provider = self.on.providers[0]
        posts = self.posts(count)
        claims = [self.ops.claim(provider, post.subject) for post in posts]
        settles = [self.ops.settle(provider, post.subject) for post in posts]
        return [op for chain in zip(posts, claims, settles, strict=True) for op in chain]

    async def relay(self, relays: Sequence[NewRelay]) -> None:
        await self.queue(relays)
        await self.stage.until(ENDED)

    async def queue(self, relays: Sequence[NewRelay]) -> None:
        async def body(connection: Connection) -> None:
            await outbox_sql.submit_all(connection, relays, max_depth=_DEPTH)

        await self.stage.database.transact(body)

    async def filled(self, make: Callable[[int], list[NewRelay]], a_block: int) -> Filled:
        """Return the full blocks after queueing ops for several."""
        relays = make(a_block * FULL_BLOCKS)
        first = await self.stage.fetchval("select coalesce(max(id), 0) from relay_txs")
        await self.on.anvil.mine_every(BLOCK_SECONDS)
        await self.relay(relays)
        await self._by_transaction()
        async with self.stage.database.connection() as connection:
            blocks = await connection.fetch(
                "select t.block_number as number, sum(r.ops)::bigint as ops,"
                " bool_and(t.succeeded) as whole from relay_txs t join lateral"
                " (select count(*) as ops from relays r where r.tx_id = t.id) r on true"
                " where t.id > $1 group by t.block_number order by t.block_number",
                first,
            )
        if not all(block["whole"] for block in blocks):
            raise AssertionError("a transaction ran out of the gas that was planned for it")
        # The first and the last are partly filled. Empty blocks between them count too.
        numbers = range(blocks[0]["number"] + 1, blocks[-1]["number"])
        used = [await self._used(number) for number in numbers]
        return Filled(used, statistics.median(int(block["ops"]) for block in blocks[1:-1]))

    async def _used(self, number: int) -> int:
        block = await self.stage.rpc.call_as(dict[str, object], "eth_getBlockByNumber", hex(number), False)
        return quantity(str(block["gasUsed"]))

    async def loaded(self, ops_a_block: float) -> Loaded:
        """Run callers with random arrivals, this many per block on average."""
        chance = random.Random(26)  # noqa: S311 - the same callers in each run
        rate = ops_a_block / BLOCK_SECONDS
        relays = self.posts(int(ops_a_block * LOADED_BLOCKS))
        first = await self.stage.fetchval("select coalesce(max(id), 0) from relay_txs")
        await self.on.anvil.mine_every(BLOCK_SECONDS)
        waited: list[float] = []

        async def caller(op: NewRelay) -> None:
            started = time.perf_counter()
            await mined(self.stage, op)
            waited.append(time.perf_counter() - started)

        async with anyio.create_task_group() as callers:
            due = anyio.current_time()
            for op in relays:
                due += chance.expovariate(rate)
                await anyio.sleep_until(due)
                callers.start_soon(caller, op)
        await self._by_transaction()
        async with self.stage.database.connection() as connection:
            numbers = await connection.fetch(
                "select distinct block_number as number from relay_txs where id > $1 order by block_number", first
            )
        used = [await self._used(row["number"]) for row in numbers[1:-1]]
        return Loaded(waited, statistics.mean(used) / BLOCK_GAS_LIMIT)

    async def beside_a_batch(self, lines: int) -> Beside:
        batch = [attrs.evolve(post, priority=Priority.BATCH_POST) for post in self.posts(lines)]
        first = await self.stage.fetchval("select coalesce(max(id), 0) from relay_txs")
        await self.on.anvil.mine_every(BATCH_BLOCK_SECONDS)
        chance = random.Random(26)  # noqa: S311 - the same moments of a block in each run
        waited: list[float] = []

        async def caller() -> None:
            while await self.stage.fetchval(_OF_BATCHES):
                await anyio.sleep(chance.uniform(0, BATCH_BLOCK_SECONDS))
                (lone,) = self.posts(1)
                started = time.perf_counter()
                await mined(self.stage, lone)
                waited.append(time.perf_counter() - started)

        await self.queue(batch)
        async with anyio.create_task_group() as callers:
            for _ in range(_LONE_CALLERS):
                callers.start_soon(caller)
        await self.stage.until(ENDED)
        await self._by_transaction()
        async with self.stage.database.connection() as connection:
            blocks = await connection.fetch(
                "select t.block_number as number, count(*) as ops from relay_txs t join relays r on r.tx_id = t.id"
                " where t.id > $1 group by 1 order by 1",
                first,
            )
            by_account = await connection.fetch(
                "select count(*) as ops from relay_txs t join relays r on r.tx_id = t.id where t.id > $1"
                " group by t.account",
                first,
            )
        numbers = range(blocks[0]["number"] + 1, blocks[-1]["number"])
        ops = sum(block["ops"] for block in blocks[1:-1])
        return Beside(
            ops,
            [await self._used(number) for number in numbers],
            [account["ops"] / (lines + len(waited)) for account in by_account],
            waited,
        )

    async def _by_transaction(self) -> None:
        await self.on.anvil.call("evm_setIntervalMining", 0)
        await self.on.anvil.call("evm_setAutomine", True)


async def _beside() -> Beside:
    async with (
        ground(BLOCK_GAS_LIMIT) as on,
        relayer(on, *on.relayers[:2], coalesce_max=_POSTS) as running,
    ):
        return await Scene(on, running, Ops.of(on.market)).beside_a_batch(LINES)


async def _measured() -> tuple[Filled, Filled, Loaded]:
    async with ground(BLOCK_GAS_LIMIT) as on:
        await _with_room_for_claims(on)
        async with relayer(on, on.relayers[0], coalesce_max=3 * _CHAINS) as running:
            scene = Scene(on, running, Ops.of(on.market))
            chains = await scene.filled(scene.chains, CHAINS_A_BLOCK)
        async with relayer(on, on.relayers[1], coalesce_max=_POSTS) as running:
            scene = Scene(on, running, Ops.of(on.market))
            posts = await scene.filled(scene.posts, POSTS_A_BLOCK)
            return posts, chains, await scene.loaded(LOAD * posts.ops)


async def _with_room_for_claims(on: Ground) -> None:
    operator = hexed(on.providers[0].address)
    async with connected(on.anvil.rpc_url) as chain:
        registry = at(chain, "ProviderRegistry", on.market.providers)
        (named,) = [one for one in on.market.provider_ids if one.lower() == operator]
        now = (await chain.web3.eth.get_block("latest"))["timestamp"] + 1
        await chain.send(registry, named, "requestCapacity", _CEILING, now, b"")
        await chain.send(registry, on.admin, "setCeiling", on.market.provider_ids[named], _CEILING)


def rows() -> list[Row]:
    with start_blocking_portal("asyncio", backend_options={"use_uvloop": True}) as portal:
        posts, chains, loaded = portal.call(_measured)
        beside = portal.call(_beside)

    def filled(what: str, found: Filled) -> Row:
        return Row.of(
            f"gas of a block used at saturation, {what}, {_BLOCKS}",
            found.used,
            "gas",
            "the block's gas limit",
            BLOCK_GAS_LIMIT,
            target=0.9,
        )

    return [
        filled("posts", posts),
        filled("chains of 3 ops", chains),
        Row.of(
            f"99 of 100 callers at 80 % load, of each fifth of them, {_BLOCKS} each {BLOCK_SECONDS} s",
            loaded.slow(_PARTS),
            "s",
            f"two blocks ({loaded.share:.2f} of the gas)",
            2 * BLOCK_SECONDS,
            at_most=1,
        ),
        *_beside_rows(beside),
    ]


def _beside_rows(found: Beside) -> list[Row]:
    what = f"a batch of {LINES:,} lines by two accounts, {_BLOCKS} each {BATCH_BLOCK_SECONDS} s"
    shares = " and ".join(f"{share:.0%}" for share in found.accounts)
    line = sum(found.used) / found.ops  # gas
    rates = [used / line / BATCH_BLOCK_SECONDS for used in found.used]
    half, slowest = BATCH_BLOCK_SECONDS + LONE_SECONDS, 2 * BATCH_BLOCK_SECONDS + LONE_SECONDS
    return [
        Row.of(
            f"lines posted a second, by the gas of each block, {what}",
            rates,
            "lines/s",
            f"the block's gas limit (accounts: {shares})",
            BLOCK_GAS_LIMIT / line / BATCH_BLOCK_SECONDS,
            target=0.9,
        ),
        Row.of(f"half of the lone posts beside {what}", found.waited, "s", f"{half:g} s", half, at_most=1),
        Row.of(
            f"the slowest lone post beside {what}",
            found.waited,
            "s",
            "a block later than the next",
            slowest,
            at_most=1,
            by=max,
        ),
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
