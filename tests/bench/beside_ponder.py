"""Indexing speed compared with Ponder: the same posts, from the same node, into tables on the same server.

The project in `ponder/` stores the same columns as the indexer's `jobs`. Ponder's time is the one in its log, from the
start of its backfill to the last block, so its startup (seconds) does not count. Its finality is 30 blocks. It
processes these one by one, as our indexer does with its last 64. The tables are compared row by row at the end. Ponder
needs a separate installation (200 MB), so it is not part of every run.
"""

import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import asyncpg

from common.scalars import hex_of
from coordinatord.chain.rpc.client import open_rpc
from devnet.anvil import CHAIN_ID
from devnet.child import Program, running
from devnet.errors import DevnetError
from devnet.ports import LOOPBACK, pick_free
from tests.bench.indexing import DENSE, Chain, filled, index_all, rates_of, timed
from tests.bench.row import Row, Turns

TARGET: Final = 8
_PROJECT: Final = Path(__file__).parent / "ponder"
_PACKAGE: Final = _PROJECT / "node_modules" / "ponder" / "dist" / "esm"
_DATABASE: Final = "ponder"
_SCHEMA: Final = "by_ponder"
_COMPLETED: Final = b"Completed indexing across all chains"  # logged once, after the last block
_PATIENCE: Final = 300  # seconds

# Ponder starts at 20 requests a second and increases to 500. That suits a hosted node, but with a local node this
# limiter would be measured. No option changes it. Without an initial limit, Ponder's adaptation sets none later.
_STOCK: Final = "const INITIAL_MAX_RPS = 20;"
_LIFTED: Final = "const INITIAL_MAX_RPS = Number.POSITIVE_INFINITY;"

_BYTES: Final = ("job_id", "owner", "c", "pay_sig")  # hexadecimal text in Ponder's table
_OTHERS: Final = (
    *("model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at", "cap"),
    *("fee_bps", "gas_fee", "task_cid", "posted_block", "posted_log", "state", "ended_because", "provider_id"),
    *("claimed_at", "completion_tok", "cost", "result_cid"),
)


def lift_rate_limit() -> None:
    """Replace the one line of the installed Ponder that limits it; `Trouble` when it is not there."""
    file = _PACKAGE / "rpc" / "index.js"
    if not file.is_file():
        raise DevnetError("Ponder is not installed: run `make bench-ponder`")
    source = file.read_text(encoding="utf-8")
    if _LIFTED in source:
        return
    if source.count(_STOCK) != 1:
        raise DevnetError(f"this Ponder limits its rate elsewhere: no line {_STOCK!r} in {file}")
    file.write_text(source.replace(_STOCK, _LIFTED), encoding="utf-8")


async def by_ponder(chain: Chain, folder: Path) -> float:
    """Return posts per second by Ponder's clock, into a database made for this run."""
    connection = await asyncpg.connect(chain.database_url)
    await connection.execute(f"drop database if exists {_DATABASE} with (force)")
    await connection.execute(f"create database {_DATABASE}")
    await connection.close()
    log = folder / "ponder.log"
    log.unlink(missing_ok=True)
    seconds: list[float] = []
    async with running(_program(chain, folder, log)) as child:

        async def completed() -> bool:
            seconds.extend(_seconds_taken(log))
            return bool(seconds)

        await child.wait_until(completed, _PATIENCE)
    return chain.posts / seconds[0]


def _program(chain: Chain, folder: Path, log: Path) -> Program:
    node = shutil.which("node")
    if node is None:
        raise DevnetError("node is not in PATH: run `make bench-ponder`")
    arguments = ("start", "--root", str(_PROJECT), "--schema", _SCHEMA, "--log-format", "json", "--log-level", "info")
    environment = {
        "DATABASE_URL": _database(chain),
        "CHAIN_ID": str(CHAIN_ID),
        "RPC_URL": chain.rpc_url,
        "JOB_REGISTRY": hex_of(chain.book.job_registry),
        "LAST_BLOCK": str(chain.blocks),
        "NODE_ENV": "production",
        "PONDER_TELEMETRY_DISABLED": "true",
        "HOME": str(folder),
    }
    where = ("--hostname", LOOPBACK, "--port", str(pick_free()))
    return Program("ponder", (node, str(_PACKAGE / "bin" / "ponder.js"), *arguments, *where), log, environment)


def _database(chain: Chain) -> str:
    return urlsplit(chain.database_url)._replace(path=f"/{_DATABASE}").geturl()


def _seconds_taken(log: Path) -> list[float]:
    """Return the time for all blocks from Ponder's log. Empty until they are done."""
    lines = [line for line in log.read_bytes().splitlines(keepends=True) if _COMPLETED in line]
    return [json.loads(line)["duration"] / 1000 for line in lines if line.endswith(b"\n")]


async def _check_same(chain: Chain, ours: "asyncpg.Connection[asyncpg.Record]") -> None:
    theirs = await asyncpg.connect(_database(chain))
    expected = await _digest(ours, "jobs", [f"'0x' || encode({name}, 'hex')" for name in _BYTES])
    found = await _digest(theirs, f"{_SCHEMA}.job", [f"lower({name})" for name in _BYTES])
    await theirs.close()
    if found != expected:
        raise AssertionError("the tables differ")


async def _digest(connection: "asyncpg.Connection[asyncpg.Record]", table: str, names: list[str]) -> tuple[int, str]:
    row = f"row({', '.join([*names, *_OTHERS])})::text"
    digest = f"md5(string_agg({row}, ',' order by posted_block, posted_log))"
    count, digested = await connection.fetchrow(f"select count(*), {digest} from {table}")  # noqa: S608 - ours
    return count, digested


async def _rates(chain: Chain, folder: Path) -> Turns:
    connection = await asyncpg.connect(chain.database_url)
    async with open_rpc(chain.rpc_url) as rpc:
        rates = await rates_of(
            {
                "ours": partial(timed, chain, connection, partial(index_all, rpc)),
                "ponder": partial(by_ponder, chain, folder),
            }
        )
    await _check_same(chain, connection)
    await connection.close()
    return rates


def rows() -> list[Row]:
    lift_rate_limit()
    with filled(*DENSE, "dense") as chain, tempfile.TemporaryDirectory() as folder:
        rates = anyio.run(_rates, chain, Path(folder), backend_options={"use_uvloop": True})
    what = f"index {chain.posts:,} posts, {DENSE[1]} per block"
    against = f"Ponder, its rate limit lifted ({rates['ponder']:,.0f} events/s)"
    return [rates.row(what, "ours", "ponder", against, target=TARGET, unit="events/s")]
