"""Compare the state after a run with the system's promises."""

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import asyncpg
import attrs

from common.address_book import AddressBook
from common.daemon.secrets import Secret
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.rpc.client import Rpc, decode_quantity, open_rpc
from coordinatord.run.config import Config
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.pins.store import open_pin_store
from devnet.anvil import Anvil
from devnet.pins import PinStoreService
from tests.soak.audits import lease_violations, opened_without_nonce
from tests.support.invariants.batches import broken_batches
from tests.support.invariants.budgets import budget_violations
from tests.support.invariants.exits import exit_violations
from tests.support.invariants.funds import balance_violations, fund_violations
from tests.support.invariants.index import index_violations
from tests.support.invariants.jobs import job_violations
from tests.support.invariants.liveness import liveness_violations
from tests.support.invariants.market_log import read_market_log
from tests.support.invariants.nonces import nonce_violations
from tests.support.invariants.objects import LONG_AGO, object_violations
from tests.support.invariants.registries import registry_violations
from tests.support.invariants.relays import relay_violations
from tests.support.invariants.replay import job_replay_violations, replay_violations
from tests.support.invariants.sessions import session_violations
from tests.support.invariants.transfers import transfer_violations

INVARIANTS: Final = {
    "I1": "none lost",
    "I2": "none doubled",
    "I3": "nonces",
    "I4": "index",
    "I5": "funds",
    "I6": "batches",
    "I7": "objects",
    "I8": "sessions",
    "I9": "leases",
    "I10": "write-ahead",
    "I11": "exits",
    "I12": "budgets",
    "I13": "liveness",
}
_RECLAIM_GRACE_S: Final = 120.0  # of the chain's clock, which faults advance by up to twenty at a time
_MAX_OPS_MINED_AGAIN: Final = 8  # concurrent ops of one signer, which a reorg makes cost twice
_UNDER_WAY: Final = "select count(*) from relays where state in ('queued', 'signed')"
_OPEN: Final = "coalesce(completed_at, failed_at, expired_at, cancelled_at) is null"
# Lines over their owner's gas budget wait until their batch expires. Buyers' batches have ended, but strangers' may not
# have.
_EXPIRE: Final = f"update batches set expires_at = clock_timestamp() where {_OPEN}"  # noqa: S608 - constants
_UNENDED: Final = f"select count(*) from batches where {_OPEN}"  # noqa: S608 - constants
_CLAIMED: Final = "select count(*) from jobs where state = 1"


@attrs.frozen
class Window:
    """Part of a long run that is checked: everything since a block and a time."""

    block: int
    time: datetime


@attrs.frozen
class Remains:
    """Access to the state after a run, directly to the services without the fault proxies."""

    anvil: Anvil
    database_url: str
    pins: PinStoreService
    book: AddressBook
    config: Config  # the coordinators' settings, including budgets
    emptied: Sequence[tuple[float, float]] = ()  # intervals when relayers' accounts were empty
    foreign: int = 0  # foreign transactions from relayers' accounts
    patience: float = 120.0  # timeout in seconds for each kind of unfinished work
    window: Window | None = None  # None: the whole chain


async def come_to_rest(remains: Remains, *, last: bool = True) -> list[str]:
    """Wait until all relays are mined, and stop mining. In the last round, also wait until claimed jobs are reclaimed
    after their window. Return a violation for each kind of work that did not end."""
    anvil = remains.anvil
    connection = await asyncpg.connect(remains.database_url)
    try:
        await connection.execute(_EXPIRE)
        until_none = partial(_until_none, connection, remains.patience)
        stuck = await until_none(_UNENDED, "I6: {} batches did not end with their window")
        stuck += await until_none(_UNDER_WAY, "I1: {} relays did not end")
        first = None if remains.window is None else remains.window.block
        log = await read_market_log(anvil.rpc_url, remains.book, first)
        stuck += liveness_violations(log, grace=_RECLAIM_GRACE_S)
        if last and await connection.fetchval(_CLAIMED):
            await anvil.call("evm_increaseTime", 86_400)
            await anvil.call("evm_mine")
            stuck += await until_none(_CLAIMED, "I1: {} jobs are still claimed after their window")
            stuck += await until_none(_UNDER_WAY, "I1: {} relays did not end")
        await anvil.call("evm_setIntervalMining", 0)
        await anvil.call("evm_mine")
    finally:
        await connection.close()
    return stuck


_NOT_ENDED: Final = {
    "jobs": "select * from jobs where state in (0, 1)",
    "leases": "select l.* from leases l join jobs j using (job_id) where j.state in (0, 1)",
    "relays": "select r.* from relays r join jobs j on j.job_id = r.subject where j.state in (0, 1)",
    "batches": "select * from batches where coalesce(completed_at, failed_at, expired_at, cancelled_at) is null",
    "transactions": "select id, encode(account, 'hex') as account, nonce, purpose, created_at, broadcast_at"
    " from relay_txs where block_number is null and not lost",
}


async def keep_unended(database_url: str, path: Path) -> None:
    """Save rows of unfinished work for debugging, because the database is deleted after the run."""
    connection = await asyncpg.connect(database_url)
    try:
        kept = {name: [dict(row) for row in await connection.fetch(query)] for name, query in _NOT_ENDED.items()}
    finally:
        await connection.close()
    text = json.dumps(kept, indent=1, default=lambda value: value.hex() if isinstance(value, bytes) else str(value))
    await anyio.Path(path).write_text(text + "\n", encoding="utf-8")


async def _until_none(
    connection: "asyncpg.Connection[asyncpg.Record]", patience: float, query: str, told: str
) -> list[str]:
    with anyio.move_on_after(patience):
        while await connection.fetchval(query):  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.25)
        return []
    return [told.format(await connection.fetchval(query))]


async def violations(remains: Remains, promised: Collection[bytes]) -> list[str]:
    """Return all violations, each line starting with its invariant. The chain must stand still while an indexer
    runs."""
    connection = await asyncpg.connect(remains.database_url)
    book = remains.book
    try:
        async with open_rpc(remains.anvil.rpc_url) as rpc:
            head = decode_quantity(await rpc.call("eth_blockNumber"))
            with anyio.move_on_after(remains.patience):
                while (position := await read_position(connection)) is None or position.block_number < head:  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.1)
            since = remains.window
            block, began = (0, LONG_AGO) if since is None else (since.block, since.time)
            first = max(book.deploy_block, block)
            return [
                *await relay_violations(connection, rpc, stuck_after=0, since_block=block),
                *await job_violations(rpc, book, promised=promised, since_block=since and block),
                *await nonce_violations(connection, remains.anvil.rpc_url, first, foreign=remains.foreign),
                *await _index_violations(connection, rpc, remains),
                *await registry_violations(connection, rpc, book, block),
                *await _batch_violations(remains, began),
                *await object_violations(connection, remains.pins.gateway, since=began, since_block=block),
                *await session_violations(connection),
                *await opened_without_nonce(connection),
                *await lease_violations(connection),
                *await exit_violations(connection, emptied=remains.emptied),
                *await budget_violations(connection, remains.config, mined_again=_MAX_OPS_MINED_AGAIN),
            ]
    finally:
        await connection.close()


async def _index_violations(connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, remains: Remains) -> list[str]:
    """Compare index and funds with the chain's whole history. In a long run, compare the window's jobs with their
    events, and the funds with the index."""
    book, window = remains.book, remains.window
    log = await read_market_log(remains.anvil.rpc_url, book, None if window is None else window.block)
    if window is not None:
        return [
            *await job_replay_violations(connection, log, window.block),
            *await balance_violations(connection, rpc, book),
        ]
    return [
        *await index_violations(remains.database_url, rpc, book),
        *await replay_violations(connection, log),
        *await fund_violations(rpc, book),
        *transfer_violations(log, book.job_registry),
    ]


async def _batch_violations(remains: Remains, since: datetime) -> list[str]:
    at = remains.pins
    async with (
        open_database(remains.database_url, max_size=2) as database,
        open_pin_store(at.endpoint, at.bucket, Secret(at.key), Secret(at.secret), at.region) as pins,
    ):
        return await broken_batches(database, pins, since)


def judged(found: Collection[str]) -> dict[str, Any]:
    """Group the violations by invariant. Violations of no invariant are in `other`."""
    broken: dict[str, list[str]] = {name: [] for name in (*INVARIANTS, "other")}
    for line in found:
        name = line.split(":", 1)[0]
        broken[name if name in INVARIANTS else "other"].append(line)
    return {name: {"holds": not lines, "detail": "; ".join(lines[:20])} for name, lines in broken.items()}
