"""Check all promises about relays, jobs, index and funds at once."""

from collections.abc import Collection

import anyio
import asyncpg

from common.address_book import AddressBook
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.rpc.client import decode_quantity, open_rpc
from tests.support.invariants.funds import fund_violations
from tests.support.invariants.index import index_violations
from tests.support.invariants.jobs import job_violations
from tests.support.invariants.market_log import read_market_log
from tests.support.invariants.nonces import nonce_violations
from tests.support.invariants.registries import registry_violations
from tests.support.invariants.relays import relay_violations
from tests.support.invariants.replay import replay_violations
from tests.support.invariants.transfers import transfer_violations


async def all_violations(
    database_url: str, rpc_url: str, book: AddressBook, *, promised: Collection[bytes] = (), donations: int = 0
) -> list[str]:
    """Check I1–I5 once the running indexer has reached the head. No work may be under way."""
    connection = await asyncpg.connect(database_url)
    try:
        async with open_rpc(rpc_url) as rpc:
            head = decode_quantity(await rpc.call("eth_blockNumber"))
            with anyio.fail_after(60):
                while (position := await read_position(connection)) is None or position.block_number < head:  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.02)
            log = await read_market_log(rpc_url, book)
            return [
                *await relay_violations(connection, rpc, stuck_after=0),
                *await nonce_violations(connection, rpc_url, book.deploy_block),
                *await job_violations(rpc, book, promised=promised),
                *await replay_violations(connection, log),
                *transfer_violations(log, book.job_registry, donations=donations),
                *await index_violations(database_url, rpc, book),
                *await registry_violations(connection, rpc, book),
                *await fund_violations(rpc, book, donations=donations),
            ]
    finally:
        await connection.close()
