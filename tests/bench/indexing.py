"""Indexing speed: a chain of posts into the tables, compared with the node's getLogs alone and with plain web3.py.

Our run includes: headers of all blocks with links and filters checked, every log matched to its block, strict decoding,
folding, the real `jobs` table with all its indexes, position and notices. The last 64 blocks are indexed one by one
with the undo journal, and earlier ones in bulk without it. The node's time is in every figure. One more row writes
every block like those near the head: with the undo journal, all indexes, and its events in the log.

No index reaches the speed of getLogs alone, because rows have to be written. So a third figure is getLogs with a COPY
of prepared rows, and the indexes built on them. The gap between this figure and getLogs alone is PostgreSQL's share.
The gap between our figure and this one is the cost of reading, checking and folding.

The dense chain is the target: a busy market, where the cost per event counts. The sparse chain shows the cost per
block, because every event needs a header, which neither getLogs alone nor web3.py reads. Its targets are scaled from
the dense ones. In a separate measurement, SQD's processor, which also reads headers, indexes 20k/s of the dense posts
and 2.9k/s of the sparse ones, and getLogs alone reads 195k/s and 213k/s. Dense, 0.35 of getLogs is 3.4 times SQD.
Sparse, 3.4 times SQD is 0.05 of getLogs, which is 5 times the 2.2k/s of web3.py.
"""

import http.client
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
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
from coordinatord.chain.contracts.logs import Decoder
from coordinatord.chain.indexer import apply
from coordinatord.chain.indexer.apply import folded
from coordinatord.chain.indexer.changes import NewJob
from coordinatord.chain.indexer.fetch import NodeSource, RangeWidth
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower
from coordinatord.chain.indexer.job_rows import POSTED, posted_rows
from coordinatord.chain.indexer.tables_sql import build_job_indexes, drop_job_indexes
from coordinatord.chain.indexer.undo_sql import UNDOABLE
from coordinatord.chain.rpc.client import Rpc, open_rpc
from coordinatord.storage.database.migration import migrate
from devnet import accounts
from devnet.anvil import CHAIN_ID, running_anvil
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.log_emitter import Filler
from tests.bench.row import Row, Turns, in_turn

JOURNAL_BLOCKS: Final = 64
DENSE: Final = (480, 100)  # blocks, posts per block
SPARSE: Final = (2000, 1)  # few, because anvil mines more slowly as its chain grows
LOGGED: Final = (60, 400)
_WARMING: Final = 6  # of those blocks, of each kind
OF_LIMIT: Final = {"dense": 0.35, "sparse": 0.05}
UNDOABLE_OF_LIMIT: Final = {"dense": 0.15}
OF_READY: Final = 0.45
OF_WEB3: Final = {"dense": 25, "sparse": 5}
SAMPLE_BLOCKS: Final = {"dense": 5, "sparse": 200}  # for web3.py, which would take minutes for all
RANGE: Final = {"dense": 50, "sparse": 500}  # best range widths for getLogs alone
ROUNDS: Final = 3
_ARTIFACT: Final = Path(__file__).parents[2] / "common" / "contracts" / "artifacts" / "JobRegistry.json"
_REGISTRIES: Final = [bytes([n]) * 20 for n in (0x51, 0x52, 0x53)]


Work = Callable[["Chain", "asyncpg.Connection[asyncpg.Record]"], Awaitable[int]]


@attrs.frozen
class Chain:
    """A chain of posts alone."""

    name: str
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
    for first in range(1, chain.blocks + 1, RANGE[chain.name]):
        last = min(chain.blocks, first + RANGE[chain.name] - 1)
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
        getlogs_cap=5000,
        block_time_ms=1000,
        confirmations=0,
        journal_blocks=journal_blocks,
    )
    await IndexFollower(NodeSource(rpc, Decoder(chain.book)), settings, Wake()).catch_up(connection)
    return chain.posts


async def ready_rows(rpc: Rpc, chain: Chain) -> list[bytes]:
    """The rows of the chain's jobs as they are copied, a piece for each range."""
    source, width, pieces, ordinal = NodeSource(rpc, Decoder(chain.book)), RangeWidth(chain.blocks), list[bytes](), 0
    for first in range(1, chain.blocks + 1, RANGE[chain.name]):
        last = min(chain.blocks, first + RANGE[chain.name] - 1)
        jobs = folded(await source.range(first, last, width)).new_jobs.values()
        pieces.append(posted_rows(enumerate(jobs, ordinal)))
        ordinal += len(jobs)
    return pieces


async def without_reading(rows: Sequence[bytes], chain: Chain, connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """What would be left if headers and logs took no time to read, check and fold: the node and the tables."""
    await drop_job_indexes(connection)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, get_logs_alone, chain)
        for piece in rows:
            await connection.copy_to_table("jobs", source=memoryview(piece), columns=POSTED, format="binary")
    await build_job_indexes(connection)
    return chain.posts


async def by_web3(chain: Chain, connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """web3.py as documented: get_logs of the event, range by range, and executemany."""
    web3 = AsyncWeb3(AsyncHTTPProvider(chain.rpc_url))
    contract = web3.eth.contract(web3.to_checksum_address(_REGISTRIES[0]), abi=json.loads(_ARTIFACT.read_text())["abi"])
    names = (*NewJob.__struct_fields__[:18], "ordinal")
    insert = f"insert into jobs ({', '.join(names)}) values ({', '.join(f'${n}' for n in range(1, 20))})"  # noqa: S608
    posts = 0
    for first in range(1, SAMPLE_BLOCKS[chain.name] + 1, RANGE[chain.name]):
        last = min(SAMPLE_BLOCKS[chain.name], first + RANGE[chain.name] - 1)
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
    tables = f"{', '.join(UNDOABLE)}, job_counts, owner_sums, undo_journal, index_blocks, index_position"
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


async def rates_of(candidates: dict[str, Callable[[], Awaitable[float]]]) -> Turns:
    """The rates of each, in turn, forwards and backwards; a round before the first warms caches."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(ROUNDS + 1):
        for name in in_turn(candidates, turn):
            rate = await candidates[name]()
            if turn:
                taken[name].append(rate)
    return Turns(taken)


async def _rates(chain: Chain) -> Turns:
    connection = await asyncpg.connect(chain.database_url)
    async with open_rpc(chain.rpc_url) as rpc:
        candidates = {
            "limit": partial(_limit, chain),
            "ours": partial(timed, chain, connection, partial(index_all, rpc)),
            "web3": partial(timed, chain, connection, by_web3),
        }
        if chain.name in UNDOABLE_OF_LIMIT:
            ready = await ready_rows(rpc, chain)
            candidates["ready"] = partial(timed, chain, connection, partial(without_reading, ready))
            every = partial(index_all, rpc, journal_blocks=chain.blocks)
            candidates["undoable"] = partial(timed, chain, connection, every)
        rates = await rates_of(candidates)
    await connection.close()
    return rates


@contextmanager
def filled(blocks: int, posts_per_block: int, name: str) -> Iterator[Chain]:
    """Start a chain with this many blocks, and a database."""
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal("asyncio") as portal:
        place = Path(folder)
        for part in ("anvil", "pg", "logs"):
            (place / part).mkdir()
        with (
            portal.wrap_async_context_manager(running_anvil(pick_free(), place / "anvil", place / "logs")) as anvil,
            portal.wrap_async_context_manager(running_postgres(pick_free(), place / "pg", place / "logs")) as postgres,
        ):
            with Filler(anvil.rpc_url, _REGISTRIES[0], accounts.derive().admin.address) as filler:
                filler.mine(blocks, posts_per_block)
                if filler.height() != blocks:
                    raise AssertionError("anvil mined another number of blocks")
            portal.call(_migrated, postgres.url())
            yield Chain(name, anvil.rpc_url, postgres.url(), blocks, blocks * posts_per_block)


async def _migrated(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()


def _measured(name: str, blocks: int, posts_per_block: int) -> list[Row]:
    with filled(blocks, posts_per_block, name) as chain:
        rates = anyio.run(_rates, chain, backend_options={"use_uvloop": True})
    what = f"index {chain.posts:,} posts, {posts_per_block} per block"
    some, all_ = f"{what}, {JOURNAL_BLOCKS} of {blocks} blocks undoable", f"{what}, every block undoable and told"
    get_logs = "getLogs and the socket read"
    beside = [
        (some, "ours", "limit", get_logs, OF_LIMIT[name]),
        (some, "ours", "web3", "web3.py get_logs and executemany", OF_WEB3[name]),
    ]
    if name in UNDOABLE_OF_LIMIT:
        beside.append((some, "ours", "ready", "getLogs beside COPY of rows that are ready, and indexes", OF_READY))
        beside.append((all_, "undoable", "limit", get_logs, UNDOABLE_OF_LIMIT[name]))
    return [
        rates.row(called, ours, other, against, target=target, unit="events/s")
        for called, ours, other, against, target in beside
    ]


async def _nothing(*_: object) -> None:
    pass


async def _near_head(chain: Chain) -> Turns:
    """Posts a second of blocks that are applied one by one, read and decoded beforehand; with and without their events,
    in turn."""
    async with open_rpc(chain.rpc_url) as rpc:
        source = NodeSource(rpc, Decoder(chain.book))
        blocks = [await source.blocks(number, number) for number in range(1, chain.blocks + 1)]
    connection = await asyncpg.connect(chain.database_url)
    taken: dict[str, list[float]] = {"ours": [], "other": []}
    for turn, block in enumerate(blocks):
        with patch.object(apply, "append_events", _nothing) if turn % 2 else nullcontext():
            began = time.perf_counter()
            await apply.apply_blocks(connection, block, window=JOURNAL_BLOCKS, rebuilding=False)
            taken["other" if turn % 2 else "ours"].append(chain.posts / chain.blocks / (time.perf_counter() - began))
    await connection.close()
    return Turns({name: rates[_WARMING:] for name, rates in taken.items()})


def _event_log() -> Row:
    blocks, posts = LOGGED
    with filled(blocks, posts, "dense") as chain:
        rates = anyio.run(_near_head, chain, backend_options={"use_uvloop": True})
    what = f"blocks of {posts} posts near the head, with their events"
    return rates.row(what, "ours", "other", "the same without the event log", target=0.75, unit="posts/s")


def rows() -> list[Row]:
    return [*_measured("dense", *DENSE), *_measured("sparse", *SPARSE), _event_log()]


BACKFILL: Final = int(os.environ.get("INDEX_POSTS", "0"))  # posts of a single backfill instead of the rows
_SHOWN: Final = 20  # printed lines


def backfill() -> None:
    """Print how a backfill of so many posts goes: its rate, and this process's memory, which is to stay as it is after
    the first ranges."""
    blocks, per_block = max(1, BACKFILL // DENSE[1]), DENSE[1]
    with filled(blocks, per_block, "dense") as chain:
        anyio.run(_watched, chain, backend_options={"use_uvloop": True})


async def _watched(chain: Chain) -> None:
    connection, watching = [await asyncpg.connect(chain.database_url) for _ in range(2)]
    began, ended = time.perf_counter(), anyio.Event()

    async def show() -> None:
        height = 0
        while not ended.is_set():
            position = await watching.fetchval("select block_number from index_position") or 0
            if position >= height:
                height = position + chain.blocks // _SHOWN
                rate = position * chain.posts / chain.blocks / (time.perf_counter() - began)
                print(f"block {position:>9,}  {rate:>8,.0f} posts/s  {_resident_mib():>5,} MiB", flush=True)
            await anyio.sleep(0.05)

    async with open_rpc(chain.rpc_url) as rpc, anyio.create_task_group() as tasks:
        tasks.start_soon(show)
        await index_all(rpc, chain, connection)
        ended.set()
    elapsed = time.perf_counter() - began
    if await connection.fetchval("select count(*) from jobs") != chain.posts:
        raise AssertionError("a post is missing")
    await connection.close()
    await watching.close()
    print(f"{chain.posts:,} posts in {elapsed:.0f} s, indexes built: {chain.posts / elapsed:,.0f} posts/s")


def _resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


if __name__ == "__main__":
    started = time.perf_counter()
    if BACKFILL:
        backfill()
    else:
        for row in rows():
            print(row)
    print(f"{time.perf_counter() - started:.0f} s")
