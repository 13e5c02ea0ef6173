"""The whole index as values, for comparing two ways to the same block."""

from typing import Any

import asyncpg

from coordinatord.store.index.journal import UNDOABLE

Rows = dict[str, list[tuple[Any, ...]]]


async def index_rows(connection: "asyncpg.Connection[asyncpg.Record]") -> Rows:
    """Every table that the chain fills, and the position, each in the order of its key."""
    tables: dict[str, tuple[str, ...]] = {**UNDOABLE, "index_position": ("only_row",)}
    return {
        table: [
            tuple(row)
            for row in await connection.fetch(f"select * from {table} order by {', '.join(key)}")  # noqa: S608 - constants
        ]
        for table, key in tables.items()
    }


async def forget(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """An index that has seen nothing."""
    await connection.execute(f"truncate {', '.join(UNDOABLE)}, undo_journal, index_blocks, index_position")
