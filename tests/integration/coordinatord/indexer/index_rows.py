"""The whole index as values, to compare two ways to the same block."""

from collections.abc import Mapping
from typing import Any

import asyncpg

from coordinatord.chain.indexer.undo_sql import UNDOABLE_TABLES

Rows = dict[str, list[tuple[Any, ...]]]
# Sums of the job rows. They match a fresh replay only if they are correct.
_SUMS = {"job_counts": ("list", "key", "bits", "chunk", "state"), "owner_sums": ("owner", "model_id")}


async def index_rows(
    connection: "asyncpg.Connection[asyncpg.Record]", columns: Mapping[str, str] | None = None
) -> Rows:
    """Return all tables filled from the chain, their counts, and the position, each sorted by key. `columns` has the
    names of the wanted columns by table."""
    wanted = columns or {}
    tables: dict[str, tuple[str, ...]] = {**UNDOABLE_TABLES, **_SUMS, "index_position": ("only_row",)}
    return {
        table: [
            tuple(row)
            for row in await connection.fetch(f"select {wanted.get(table, '*')} from {table} order by {', '.join(key)}")  # noqa: S608 - constants
        ]
        for table, key in tables.items()
    }


async def forget(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Reset the index to its initial state."""
    tables = ", ".join({**UNDOABLE_TABLES, **_SUMS})
    await connection.execute(f"truncate {tables}, undo_journal, index_blocks, index_position")
