"""Write ranges of blocks in one transaction each: rows, undo log, events, position and notification."""

from collections.abc import Sequence

import attrs

from coordinatord.chain.indexer.changes import BY_EXPIRY, CANCELLED, OPEN, NewJob, RowChanges, contradiction_error
from coordinatord.chain.indexer.events_sql import append_events, append_reset, take_back_events
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.expiry_sql import mark_all_expired_jobs, mark_expired_batch, update_expiry_marks
from coordinatord.chain.indexer.fold import EventMerger
from coordinatord.chain.indexer.position_sql import IndexPosition, move_position
from coordinatord.chain.indexer.tables_sql import next_job_ordinal, write_new_jobs, write_patches
from coordinatord.chain.indexer.undo_sql import (
    IndexedBlock,
    append_index_blocks,
    empty_index,
    restart_index_blocks,
    start_journal,
    undo_above,
)
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.transactions import transaction


async def apply_range(
    connection: Connection, block_range: BlockRange, ordinal: int, *, rebuilding: bool
) -> tuple[IndexPosition, int]:
    """Write blocks far below the head in bulk, without an undo log.

    `ordinal` is the ordinal of the first new job. Return the new position and the ordinal that follows these jobs.
    """
    changes = merge_events(block_range)
    _mark_expired_jobs(changes, block_range.last.time)
    position = _to_position(block_range.last, rebuilding)
    async with transaction(connection):
        await write_new_jobs(connection, changes.new_jobs.values(), ordinal)
        await write_patches(connection, changes)
        await restart_index_blocks(connection, _to_indexed_block(block_range.last))
        await mark_all_expired_jobs(connection, block_range.last.time)
        await append_reset(connection, position.block_number, position.block_time)
        await move_position(connection, position)
    return position, ordinal + len(changes.new_jobs)


async def apply_blocks(
    connection: Connection, blocks: Sequence[BlockRange], *, undo_window: int, rebuilding: bool
) -> IndexPosition:
    """Write consecutive blocks near the head. Every row that a block changes is saved first, and stays saved for
    `undo_window` blocks.

    New jobs of all blocks are inserted together, because inserts need no saved rows. After that, each block is applied
    in order.
    """
    changes = [merge_events(block) for block in blocks]
    posted = _collect_new_jobs(changes)
    position = _to_position(blocks[-1].last, rebuilding)
    async with transaction(connection):
        if posted:
            await write_new_jobs(connection, posted, await next_job_ordinal(connection))
        for block, change in zip(blocks, changes, strict=True):
            if block.events:
                await start_journal(connection, block.last.height)
                await write_patches(connection, change)
        await append_index_blocks(connection, [_to_indexed_block(block.last) for block in blocks], undo_window)
        await append_events(connection, blocks)
        await mark_expired_batch(connection, blocks[-1].last.time)
        await move_position(connection, position)
    return position


def _collect_new_jobs(changes: Sequence[RowChanges]) -> list[NewJob]:
    """Return the new jobs of all blocks. The jobs are inserted before the first block's changes are applied, so
    raise Retryable if a block changes a job that a later block posts."""
    later: set[bytes] = set()
    for change in reversed(changes):
        if not later.isdisjoint(change.jobs):
            raise contradiction_error("a job changes before it is posted")
        later.update(change.new_jobs)
    return [job for change in changes for job in change.new_jobs.values()]


async def roll_back_to(connection: Connection, ancestor: IndexedBlock, *, rebuilding: bool) -> IndexPosition:
    """Undo every block above `ancestor`."""
    position = IndexPosition(ancestor.number, ancestor.hash, ancestor.time, rebuilding)
    async with transaction(connection):
        await undo_above(connection, ancestor.number)
        await take_back_events(connection, ancestor.number)
        await update_expiry_marks(connection, ancestor.time)
        await move_position(connection, position)
    return position


async def mark_next_expired_batch(connection: Connection, position: IndexPosition) -> bool:
    """Mark one batch of the jobs that expired before the position's block. Return True if more may remain."""
    async with transaction(connection):
        return await mark_expired_batch(connection, position.block_time)


async def restart_index(connection: Connection, deploy_block: int) -> IndexPosition:
    """Empty the index and restart it at `deploy_block`. Requests cannot read the index until it reaches the head."""
    position = IndexPosition(deploy_block - 1, bytes(32), 0, rebuilding=True)
    async with transaction(connection):
        await empty_index(connection)
        await append_reset(connection, position.block_number, position.block_time)
        await move_position(connection, position)
    return position


async def finish_rebuilding(connection: Connection, position: IndexPosition) -> IndexPosition:
    rebuilt = attrs.evolve(position, rebuilding=False)
    await move_position(connection, rebuilt)
    return rebuilt


def merge_events(block_range: BlockRange) -> RowChanges:
    """Return the row changes of all events in the range."""
    headers, first = block_range.headers, block_range.first.height
    merger = EventMerger(lambda block: headers[block - first].time)
    add = merger.add
    for block, log, event in block_range.events:
        add(event, block, log)
    return merger.changes


def _mark_expired_jobs(changes: RowChanges, time: int) -> None:
    """Mark expired new jobs before they are written. In a backfill, most unclaimed jobs expired long ago."""
    for job in changes.new_jobs.values():
        if job.state == OPEN and job.expires_at < time:
            job.state, job.ended_because = CANCELLED, BY_EXPIRY


def _to_indexed_block(header: BlockHeader) -> IndexedBlock:
    return IndexedBlock(
        header.height, bytes.fromhex(header.hash[2:]), bytes.fromhex(header.parent_hash[2:]), header.time
    )


def _to_position(header: BlockHeader, rebuilding: bool) -> IndexPosition:
    return IndexPosition(header.height, bytes.fromhex(header.hash[2:]), header.time, rebuilding)
