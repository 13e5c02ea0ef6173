"""Relaying speed of one account: capacity requests through the outbox until they end, compared with the node's limit
and with plain AsyncWeb3.

Our run includes: each op's row and notices, simulation, signing, storing, broadcast, block following, receipts, and
notifying the caller. The node, PostgreSQL, the callers and the relayer share this machine.
"""

import itertools
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal
from web3 import AsyncHTTPProvider, AsyncWeb3

from common import abi
from common.secp256k1 import Wallet
from common.transactions import Transaction
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.rpc.client import Rpc, RpcCall, open_rpc, quantity
from devnet import accounts
from devnet.anvil import CHAIN_ID, Anvil, running_anvil
from devnet.app import deployed_market
from devnet.market import DevnetMarket
from devnet.ports import pick_free
from devnet.postgres import Postgres, running_postgres
from tests.bench.row import Row, Turns, interleaved
from tests.integration.coordinatord.relayer.ops import Ops, hexed, signer
from tests.integration.coordinatord.relayer.running import Stage, stage

ROUNDS: Final = 3
LIMIT_OPS: Final = 600  # per round; a provider's timestamps may run an hour ahead, which limits the total
WEB3_OPS: Final = 60
OPS: Final = {1: 300, 64: 500}  # by RELAY_COALESCE_MAX
DEPTH: Final = 4096  # RELAY_MAX_DEPTH, for so many callers
CALLERS: Final = 512
BY_DEFAULT: Final = 32  # default RELAY_MAX_DEPTH, and as many callers
FULL_BLOCKS: Final = 4  # blocks whose ops are counted
BLOCK_CALLERS: Final = 3000
FURTHER_PROVIDERS: Final = 16  # each has timestamps for about 3,400 ops, together enough for 9,000 ops a second
LONE_OPS: Final = 6
# Far above a block of coalesced operations, so that this limit is not measured.
ROOMY_BLOCK: Final = 1_000_000_000
ROOMY: Final = f"blocks of {ROOMY_BLOCK:,} gas"
_BATCH: Final = 100
_CONNECTIONS: Final = 4
_GAS: Final = 150_000
_FEE: Final = 100 * 10**9


class Feed:
    """Endless valid ops. Timestamps increase per provider, so each candidate needs separate providers. Subjects are all
    different, as with many signers, so the limit per subject is not measured."""

    def __init__(self, market: DevnetMarket, providers: Sequence[Wallet]) -> None:
        self._turns = itertools.cycle([(Ops.of(market), provider) for provider in providers])
        self._numbers = itertools.count()

    def __next__(self) -> NewRelay:
        ops, provider = next(self._turns)
        op = ops.request_capacity(provider)
        return attrs.evolve(op, subject=op.subject[12:] + next(self._numbers).to_bytes(12, "big"))


@attrs.frozen
class Ground:
    """A market on a fresh chain, and a database server."""

    anvil: Anvil
    postgres: Postgres
    market: DevnetMarket
    relayers: list[Wallet]
    providers: list[Wallet]
    outsider: Wallet
    admin: str


def rooms(directory: Path) -> Path:
    for part in ("anvil", "postgres"):
        (directory / part).mkdir()
    return directory


@asynccontextmanager
async def ground(block_gas_limit: int = ROOMY_BLOCK) -> AsyncIterator[Ground]:
    with tempfile.TemporaryDirectory() as name:
        directory = rooms(Path(name))
        async with (
            running_anvil(pick_free(), directory / "anvil", directory, block_gas_limit=block_gas_limit) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
        ):
            cast = accounts.derive()
            market = await deployed_market(anvil, cast)
            relayers, providers, clients = (
                [signer(wallet) for wallet in cast.with_role(role)] for role in ("relayer", "provider", "client")
            )
            yield Ground(anvil, postgres, market, relayers, providers, clients[0], cast.admin.address)


@asynccontextmanager
async def relayer(
    on: Ground, account: Wallet, *, coalesce_max: int, max_depth: int = DEPTH, indexed: bool = False
) -> AsyncIterator[Stage]:
    """Start one relayer with its role, on a separate database. With `indexed`, an op ends when it is indexed."""
    name = f"bench_{account.address.hex()}"
    await on.postgres.execute(f"create database {name}")
    index = Ops.of(on.market).book if indexed else None
    url = on.postgres.url(name)
    async with stage(url, on.anvil.rpc_url, coalesce_max=coalesce_max, max_depth=max_depth, index=index) as running:
        running.start(account)
        yield running


@asynccontextmanager
async def awake(anvil: Anvil) -> AsyncIterator[None]:
    """Wake up anvil. Under a burst, its automatic mining sometimes misses a wake-up, and transactions stay in the pool
    until a request."""

    async def nudge() -> None:
        while True:
            await anyio.sleep(0.1)
            if quantity((await rpc.call_as(dict[str, str], "txpool_status"))["pending"]):
                await rpc.call("evm_mine")

    async with open_rpc(anvil.rpc_url) as rpc, anyio.create_task_group() as tasks:
        tasks.start_soon(nudge)
        yield
        tasks.cancel_scope.cancel()


# --- the candidates --------------------------------------------------------------------------------------------


class Presigned:
    """The limit: presigned transactions in batches over a few connections, until the last is mined."""

    def __init__(self, on: Ground, rpc: Rpc, portions: int) -> None:
        self._anvil = on.anvil
        self._rpc = rpc
        self._account = on.outsider
        self._mined = 0
        feed = Feed(on.market, on.providers[:1])
        self._portions = iter(
            [[self._sign(p * LIMIT_OPS + n, next(feed)) for n in range(LIMIT_OPS)] for p in range(portions)]
        )

    def _sign(self, nonce: int, op: NewRelay) -> bytes:
        return (
            Transaction(
                chain_id=CHAIN_ID,
                nonce=nonce,
                max_priority_fee_per_gas=10**9,
                max_fee_per_gas=_FEE,
                gas=_GAS,
                to=op.target,
                value=0,
                data=op.calldata,
            )
            .sign(self._account)
            .raw
        )

    async def send(self) -> int:
        raws = next(self._portions)
        self._mined += len(raws)
        turns = anyio.CapacityLimiter(_CONNECTIONS)

        async def send_batch(some: list[bytes]) -> None:
            async with turns:
                await self._rpc.batch([RpcCall("eth_sendRawTransaction", (hexed(raw),)) for raw in some])

        async with awake(self._anvil):
            mined = False
            while not mined:
                async with anyio.create_task_group() as tasks:
                    for start in range(0, len(raws), _BATCH):
                        tasks.start_soon(send_batch, raws[start : start + _BATCH])
                mined = await self._all_mined()
                if not mined:
                    # anvil sometimes loses a transaction of a burst, but rejects it as known when it is sent again. So
                    # drop the pool and send all again. Those already mined are refused.
                    await self._rpc.call("anvil_dropAllTransactions")
        return len(raws)

    async def _all_mined(self) -> bool:
        """Return False if some are not mined after five seconds."""
        with anyio.move_on_after(5):
            while await self._count() < self._mined:  # noqa: ASYNC110 - the node does not tell
                await anyio.sleep(0.005)
            return True
        return False

    async def _count(self) -> int:
        return quantity(await self._rpc.call("eth_getTransactionCount", hexed(self._account.address), "latest"))


async def by_web3(on: Ground, feed: Feed) -> int:
    """Process ops one after another: estimate, sign, send, wait for the receipt."""
    web3 = AsyncWeb3(AsyncHTTPProvider(on.anvil.rpc_url))
    account = web3.eth.account.from_key(accounts.derive().with_role("client")[1].private_key)
    for _ in range(WEB3_OPS):
        op = next(feed)
        to, data = web3.to_checksum_address(hexed(op.target)), hexed(op.calldata)
        block = await web3.eth.get_block("latest")
        tip = await web3.eth.max_priority_fee
        signed = account.sign_transaction(
            {
                "to": to,
                "data": data,
                "chainId": CHAIN_ID,
                "nonce": await web3.eth.get_transaction_count(account.address),
                "gas": await web3.eth.estimate_gas({"from": account.address, "to": to, "data": data}),
                "maxPriorityFeePerGas": tip,
                "maxFeePerGas": 2 * block["baseFeePerGas"] + tip,
            }
        )
        sent = await web3.eth.send_raw_transaction(signed.raw_transaction)
        receipt = await web3.eth.wait_for_transaction_receipt(sent, poll_latency=0.001)
        if receipt["status"] != 1:
            raise AssertionError("a good op reverted")
    await web3.provider.disconnect()
    return WEB3_OPS


async def ours(on: Stage, feed: Feed, count: int, callers: int) -> int:
    """Let `callers` concurrent callers submit an op each and wait for its end."""
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            await mined(on, next(feed))

    async with anyio.create_task_group() as tasks:
        for _ in range(min(callers, count)):
            tasks.start_soon(caller)
    return count


async def mined(on: Stage, op: NewRelay) -> None:
    outcome = await on.relaying.relay(op)
    if not isinstance(outcome, RelayMined):
        raise AssertionError(f"a good op ended as {outcome}")


# --- the figures -----------------------------------------------------------------------------------------------


async def kept_awake(on: Ground, stage: Stage, feed: Feed, count: int, callers: int) -> int:
    async with awake(on.anvil):
        return await ours(stage, feed, count, callers)


def throughput(portal: BlockingPortal) -> Turns:
    with (
        portal.wrap_async_context_manager(ground()) as on,
        portal.wrap_async_context_manager(open_rpc(on.anvil.rpc_url)) as rpc,
        portal.wrap_async_context_manager(relayer(on, on.relayers[0], coalesce_max=1)) as alone,
        portal.wrap_async_context_manager(relayer(on, on.relayers[1], coalesce_max=64)) as together,
    ):
        limit = Presigned(on, rpc, ROUNDS + 1)
        web3_feed, feed = Feed(on.market, on.providers[1:2]), Feed(on.market, on.providers[2:])
        return interleaved(
            {
                "limit": lambda: portal.call(limit.send),
                "web3": lambda: portal.call(by_web3, on, web3_feed),
                "alone": lambda: portal.call(kept_awake, on, alone, feed, OPS[1], CALLERS),
                "together": lambda: portal.call(kept_awake, on, together, feed, OPS[64], CALLERS),
            },
            ROUNDS,
        )


def throughput_by_default(portal: BlockingPortal) -> Turns:
    with (
        portal.wrap_async_context_manager(ground()) as on,
        portal.wrap_async_context_manager(open_rpc(on.anvil.rpc_url)) as rpc,
        portal.wrap_async_context_manager(
            relayer(on, on.relayers[0], coalesce_max=64, max_depth=BY_DEFAULT)
        ) as by_default,
    ):
        limit, feed = Presigned(on, rpc, ROUNDS + 1), Feed(on.market, on.providers[2:])
        return interleaved(
            {
                "limit": lambda: portal.call(limit.send),
                "ours": lambda: portal.call(kept_awake, on, by_default, feed, OPS[64], BY_DEFAULT),
            },
            ROUNDS,
        )


async def by_the_clock() -> tuple[list[int], list[float]]:
    """Return ops mined in each full block of one second, and seconds of each single op until it is indexed."""
    async with ground() as on, relayer(on, on.relayers[0], coalesce_max=64, indexed=True) as running:
        feed = Feed(on.market, on.providers)
        await mined(running, next(feed))
        await on.anvil.mine_every(1)
        lone = []
        for number in range(LONE_OPS):
            await anyio.sleep(0.61 * (number % 3))  # callers arrive at any time of a block
            started = time.perf_counter()
            await mined(running, next(feed))
            lone.append(time.perf_counter() - started)
        return await in_full_blocks(on, running, Feed(on.market, await registered(on, FURTHER_PROVIDERS))), lone


async def registered(on: Ground, count: int) -> list[Wallet]:
    """Register new providers, so that a fast machine does not run out of timestamps."""
    wallets = [Wallet(secrets.token_bytes(32)) for _ in range(count)]
    for wallet in wallets:
        address = hexed(wallet.address)
        await on.anvil.call("anvil_setBalance", address, hex(10**18))
        await on.anvil.call("anvil_impersonateAccount", address)
        register = {"from": address, "to": on.market.providers, "data": hexed(abi.selector("register()"))}
        await on.anvil.call("eth_sendTransaction", register)
    before = await block_number(on.anvil)
    while await block_number(on.anvil) <= before + 1:  # noqa: ASYNC110 - the node does not tell
        await anyio.sleep(0.1)
    return wallets


async def block_number(anvil: Anvil) -> int:
    return quantity(await anvil.call("eth_blockNumber"))


async def in_full_blocks(on: Ground, running: Stage, feed: Feed) -> list[int]:
    """Ops mined in each of FULL_BLOCKS blocks, while BLOCK_CALLERS callers always wait for an op each. Raises
    TimeoutError after a minute."""
    first = await block_number(on.anvil) + 2  # the block before is partly filled
    enough = anyio.Event()

    async def caller() -> None:
        while not enough.is_set():
            await mined(running, next(feed))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(BLOCK_CALLERS):
                tasks.start_soon(caller)
            while await block_number(on.anvil) < first + FULL_BLOCKS:  # noqa: ASYNC110 - the node does not tell
                await anyio.sleep(0.1)
            enough.set()
    async with running.database.connection() as connection:
        blocks = await connection.fetch(
            "select n, (select count(*) from relays r join relay_txs t on t.id = r.tx_id"
            " where t.block_number = n) as ops from generate_series($1::bigint, $2::bigint) as n order by n",
            first,
            first + FULL_BLOCKS - 1,
        )
    return [block["ops"] for block in blocks]


def rows() -> list[Row]:
    with start_blocking_portal("asyncio", backend_options={"use_uvloop": True}) as portal:
        rates, by_default = throughput(portal), throughput_by_default(portal)
        per_block, lone = portal.call(by_the_clock)

    def row(name: str, value: str, against: str, label: str, target: float) -> Row:
        return rates.row(name, value, against, label, target=target, unit="ops/s")

    limit, tuned = "pre-signed, batched, 4 connections", f"RELAY_MAX_DEPTH {DEPTH}, {ROOMY}"
    many = f"{CALLERS} callers, {tuned}"
    return [
        row(f"relay, each op alone, {many}", "alone", "limit", limit, 0.2),
        row(f"relay, 64 ops together at most, {many}", "together", "limit", limit, 0.4),
        row(f"relay, 64 ops together at most, {many}", "together", "web3", "one caller of AsyncWeb3", 20),
        by_default.row(
            f"relay, default settings (RELAY_MAX_DEPTH {BY_DEFAULT}), {BY_DEFAULT} callers, {ROOMY}",
            "ours",
            "limit",
            limit,
            target=0.1,
            unit="ops/s",
        ),
        Row.of(
            f"ops mined in a second, {tuned}, {BLOCK_CALLERS:,} callers",
            per_block,
            "ops",
            "500",
            500,
            target=1,
            absolute="clock",
        ),
        Row.of(f"a lone op, blocks of 1 s, {tuned}", lone, "s", "a block and 50 ms", 1.05, at_most=1),
    ]
