"""Indexing speed: a chain of posts into the tables, compared with the node's getLogs alone and with plain web3.py.

Our run includes: headers of all blocks with links and filters checked, every log matched to its block, strict decoding,
folding, the real `jobs` table with all its indexes, position and notices. Every block is written like those near the
head: with the undo journal, and its events in the log. The node's time is in every figure.
"""

import http.client
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import asyncpg
import attrs
from anyio.from_thread import start_blocking_portal
from web3 import AsyncHTTPProvider, AsyncWeb3

from common.address_book import AddressBook, TokenDomain
from common.scalars import hex_of
from coordinatord.base.wake import Wake
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.changes import NewJob
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower
from coordinatord.chain.indexer.undo_sql import UNDOABLE_TABLES
from coordinatord.chain.rpc.client import Rpc, open_rpc
from coordinatord.storage.database.migration import migrate
from devnet import accounts
from devnet.anvil import CHAIN_ID, running_anvil
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.log_emitter import Filler
from tests.bench.row import MIN_TURNS, Row, Turns

JOURNAL_BLOCKS: Final = 64
BLOCKS, POSTS_A_BLOCK = 240, 100
SAMPLE_BLOCKS: Final = 3  # for web3.py, which would take minutes for all
RANGE_BLOCKS: Final = 50  # best range width for getLogs alone
SECONDS: Final = 15.0
_ARTIFACT: Final = Path(__file__).parents[2] / "common" / "contracts" / "artifacts" / "JobRegistry.json"
_REGISTRIES: Final = [bytes([n]) * 20 for n in (0x51, 0x52, 0x53)]


Work = Callable[["Chain", "asyncpg.Connection[asyncpg.Record]"], Awaitable[int]]


@attrs.frozen
class Chain:
    """A chain of posts alone."""

    rpc_url: str
    database_url: str
    blocks: int
    posts: int

    @property
    def book(self) -> AddressBook:
        jobs, providers, asks = _REGISTRIES
        return AddressBook(CHAIN_ID, 1, jobs, providers, asks, b"\x54" * 20, 6, TokenDomain("Token", "1"))


def get_logs_alone(chain: Chain) -> int:
    """The limit: request the same logs over one connection, read them from the socket, and drop them."""
    address = urlsplit(chain.rpc_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    registries = [hex_of(registry) for registry in _REGISTRIES]
    for first in range(1, chain.blocks + 1, RANGE_BLOCKS):
        last = min(chain.blocks, first + RANGE_BLOCKS - 1)
        query = {"address": registries, "fromBlock": hex(first), "toBlock": hex(last)}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": [query]})
        connection.request("POST", "/", body, {"content-type": "application/json"})
        connection.getresponse().read()
    connection.close()
    return chain.posts


async def index_all(
    rpc: Rpc, chain: Chain, connection: "asyncpg.Connection[asyncpg.Record]", journal_blocks: int = JOURNAL_BLOCKS
) -> int:
    settings = IndexerSettings(
        chain_id=CHAIN_ID,
        deploy_block=1,
        max_range_blocks=5000,
        block_time_ms=1000,
        confirmations=0,
        journal_blocks=journal_blocks,
    )
    await IndexFollower(NodeSource(rpc, LogDecoder(chain.book)), settings, Wake()).catch_up(connection)
    return chain.posts


async def by_web3(chain: Chain, connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """web3.py as documented: get_logs of the event, range by range, and executemany."""
    web3 = AsyncWeb3(AsyncHTTPProvider(chain.rpc_url))
    contract = web3.eth.contract(web3.to_checksum_address(_REGISTRIES[0]), abi=json.loads(_ARTIFACT.read_text())["abi"])
    names = (*NewJob.__struct_fields__[:18], "ordinal")
    insert = f"insert into jobs ({', '.join(names)}) values ({', '.join(f'${n}' for n in range(1, 20))})"  # noqa: S608
    posts = 0
    for first in range(1, SAMPLE_BLOCKS + 1, RANGE_BLOCKS):
        last = min(SAMPLE_BLOCKS, first + RANGE_BLOCKS - 1)
        events = await contract.events.JobPosted().get_logs(from_block=first, to_block=last)
        await connection.executemany(insert, [(*_row(event), n) for n, event in enumerate(events, posts)])
        posts += len(events)
    await web3.provider.disconnect()
    return posts


def _row(event: Any) -> tuple[object, ...]:  # web3's attribute dictionary
    a = event["args"]
    cap = max(1, -(-(a["rateIn"] * a["unitsIn"] + a["rateOut"] * a["unitsOut"]) // 10**6))
    terms = (a["rateIn"], a["rateOut"], a["unitsIn"], a["unitsOut"], a["designated"], a["expiresAt"], cap)
    place = (a["feeBps"], a["gasFee"], a["taskCid"], a["paySig"], event["blockNumber"], event["logIndex"])
    return (a["jobId"], bytes.fromhex(a["owner"][2:]), a["c"], a["modelId"], a["slaSecs"], *terms, *place)


async def timed(chain: Chain, connection: "asyncpg.Connection[asyncpg.Record]", work: Work) -> float:
    """Return posts per second of `work` on emptied tables. Emptying and checking are not timed."""
    tables = f"{', '.join(UNDOABLE_TABLES)}, job_counts, owner_sums, undo_journal, index_blocks, index_position"
    await connection.execute(f"truncate {tables}")
    started = time.perf_counter()
    posts = await work(chain, connection)
    elapsed = time.perf_counter() - started
    if await connection.fetchval("select count(*) from jobs") != posts:
        raise AssertionError("a post is missing")
    return posts / elapsed


async def _limit(chain: Chain) -> float:
    started = time.perf_counter()
    posts = await anyio.to_thread.run_sync(get_logs_alone, chain)
    return posts / (time.perf_counter() - started)


async def _rates(chain: Chain) -> Turns:
    """Measure each candidate in turn, forwards and backwards. A first turn that does not count warms caches."""
    connection = await asyncpg.connect(chain.database_url)
    taken: dict[str, list[float]] = {"limit": [], "ours": [], "web3": []}
    async with open_rpc(chain.rpc_url) as rpc:
        every_block = partial(index_all, rpc, journal_blocks=chain.blocks)
        candidates: dict[str, Callable[[], Awaitable[float]]] = {
            "limit": partial(_limit, chain),
            "ours": partial(timed, chain, connection, every_block),
            "web3": partial(timed, chain, connection, by_web3),
        }
        turn, until = 0, time.perf_counter() + SECONDS
        while turn <= MIN_TURNS or time.perf_counter() < until:
            for name in list(candidates) if turn % 2 else reversed(list(candidates)):
                rate = await candidates[name]()
                if turn:
                    taken[name].append(rate)
            turn += 1
    await connection.close()
    return Turns(taken)


@contextmanager
def filled(blocks: int, posts_per_block: int) -> Iterator[Chain]:
    """Start a chain with this many blocks, and a database."""
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal("asyncio") as portal:
        place = Path(folder)
        for part in ("anvil", "pg", "logs"):
            (place / part).mkdir()
        with (
            portal.wrap_async_context_manager(running_anvil(pick_free(), place / "anvil", place / "logs")) as anvil,
            portal.wrap_async_context_manager(running_postgres(pick_free(), place / "pg", place / "logs")) as postgres,
        ):
            with Filler(anvil.rpc_url, _REGISTRIES[0], accounts.derive_wallets().admin.address) as filler:
                filler.mine(blocks, posts_per_block)
                if filler.height() != blocks:
                    raise AssertionError("anvil mined another number of blocks")
            portal.call(_migrated, postgres.url())
            yield Chain(anvil.rpc_url, postgres.url(), blocks, blocks * posts_per_block)


async def _migrated(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()


def rows() -> list[Row]:
    with filled(BLOCKS, POSTS_A_BLOCK) as chain:
        rates = anyio.run(_rates, chain, backend_options={"use_uvloop": True})

    def row(other: str, against: str, target: float) -> Row:
        return rates.row("index posts, every block undoable", "ours", other, against, target=target, unit="events/s")

    return [
        row("limit", "getLogs and the socket read", 0.2),
        row("web3", "web3.py get_logs and executemany", 15),
    ]
