"""I4: the index equals a fresh replay of the chain, row by row.

violations = await index_violations(database_url, rpc, address_book)
assert violations == []
"""

from typing import Any, Final

import asyncpg

from common.address_book import AddressBook
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexerSettings, IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.migration import load_migrations
from tests.integration.coordinatord.indexer.scene import index_rows

# The indexer begins and commits transactions. The check runs them as savepoints, so that it can roll back everything.
_SAVEPOINTS: Final = {
    "BEGIN": "SAVEPOINT of_the_indexer",
    "COMMIT": "RELEASE SAVEPOINT of_the_indexer",
    "ROLLBACK": "ROLLBACK TO SAVEPOINT of_the_indexer",
}
_COLUMNS: Final = (
    "select table_name, string_agg(column_name, ', ' order by ordinal_position) from information_schema.columns"
    " where table_schema = 'replay' group by table_name"
)


class _CheckConnection(asyncpg.Connection):
    """Connection that turns BEGIN, COMMIT and ROLLBACK into savepoints."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109 - asyncpg's
        return await super().execute(_SAVEPOINTS.get(query, query), *args, timeout=timeout)


async def index_violations(database_url: str, rpc: Rpc, book: AddressBook) -> list[str]:
    """Return each violation as a sentence. The index must have reached the head, and no block may be mined during the
    call.

    The replay fills a second schema in a transaction that is rolled back, so it never blocks a coordinator on the same
    database.
    """
    source = NodeSource(rpc, LogDecoder(book))
    connection = await asyncpg.connect(database_url, connection_class=_CheckConnection)
    try:
        await connection.transaction(isolation="repeatable_read").start()
        head, position = await source.head(), await read_position(connection)
        if position is None or hex_of(position.block_hash) != head.hash:
            return [f"I4: the index stands at {position}, and the chain at {head.height} ({head.hash})"]
        await connection.execute("create schema replay; set search_path to replay")
        for migration in load_migrations().values():
            await connection.execute(migration.sql)
        columns = dict(await connection.fetch(_COLUMNS))  # without columns of newer releases
        await connection.execute("reset search_path")
        indexed = await index_rows(connection, columns)
        await connection.execute("set search_path to replay")
        await IndexFollower(source, _settings(book), Wake()).catch_up(connection)
        replayed = await index_rows(connection)
    except Retryable as wrong:  # the replay runs the indexer's own code, which may be the broken part
        return [f"I4: the chain cannot be replayed: {wrong}"]
    finally:
        connection.terminate()
    return [
        f"I4: {table} differs from a fresh replay in {sorted(set(rows) ^ set(replayed[table]), key=repr)}"
        for table, rows in indexed.items()
        if rows != replayed[table]
    ]


def _settings(book: AddressBook) -> IndexerSettings:
    return IndexerSettings(
        chain_id=book.chain_id,
        deploy_block=book.deploy_block,
        max_range_blocks=5000,
        block_time_ms=100,
        confirmations=0,
        journal_blocks=64,
    )
