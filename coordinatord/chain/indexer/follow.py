"""Run the indexer while this process holds the role: backfill in bulk, then follow block by block."""

import time
from typing import Final

import asyncpg
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.chain.head import BlockPosition, ChainHead
from coordinatord.chain.indexer.apply import (
    apply_blocks,
    apply_range,
    finish_rebuilding,
    mark_next_expired_batch,
    restart_index,
    roll_back_to,
)
from coordinatord.chain.indexer.changes import Contradiction
from coordinatord.chain.indexer.evidence import inconsistency_error
from coordinatord.chain.indexer.fetch import BlockSource, RangeWidth, prefetch_ranges
from coordinatord.chain.indexer.position_sql import IndexPosition, read_position
from coordinatord.chain.indexer.tables_sql import build_job_indexes, drop_job_indexes, next_job_ordinal
from coordinatord.chain.indexer.traces import record_index_span
from coordinatord.chain.indexer.undo_sql import IndexedBlock, read_index_blocks
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import RELAY_ENDED, Notices

log = structlog.get_logger(__name__)

_HEADERS_PER_REQUEST: Final = 16
# Blocks near the head that are fetched together and applied in one transaction.
_BLOCKS_PER_BATCH: Final = 32
# After this many consecutive contradictions, the index is assumed wrong instead of the node, and is rebuilt.
_MAX_CONTRADICTIONS: Final = 5


async def find_common_ancestor(connection: Connection, source: BlockSource, highest: int) -> IndexedBlock | None:
    """Return the highest block at or below `highest` that is in the index and on the node's chain, or None.

    Raise Retryable unless the node's headers are linked from that block up. An unlinked answer must not undo indexed
    blocks.
    """
    child_parent: str | None = None
    while indexed := await read_index_blocks(connection, highest, _HEADERS_PER_REQUEST):
        headers = await source.headers(indexed[-1].number, indexed[0].number)
        if child_parent is not None and headers[-1].hash != child_parent:
            raise inconsistency_error(f"block {indexed[0].number} is not the parent of the block after it")
        for block, header in zip(indexed, reversed(headers), strict=True):
            if bytes.fromhex(header.hash[2:]) == block.hash:
                return block
        child_parent = headers[0].parent_hash
        highest = indexed[-1].number - 1
    return None


@attrs.frozen(slots=True, kw_only=True)
class IndexerSettings:
    chain_id: int
    deploy_block: int
    max_range_blocks: int
    block_time_ms: int
    confirmations: int
    journal_blocks: int


async def run_indexer(
    database: Database, source: BlockSource, settings: IndexerSettings, notices: Notices, wake: Wake
) -> None:
    """Run the indexer whenever this process holds the role, until cancelled. A relay that ends in any process
    wakes the indexer, because a new block may exist."""
    role = f"indexer:{settings.chain_id}"
    async with notices.subscribe(RELAY_ENDED, lambda _: wake()):
        await hold_role(database, role, lambda connection: IndexFollower(source, settings, wake).follow(connection))


class IndexFollower:
    """Keeps the index in step with the chain, on the connection that holds the indexer role. Starts from the stored
    position and the blocks that can be undone."""

    def __init__(self, source: BlockSource, settings: IndexerSettings, wake: Wake) -> None:
        self._source = source
        self._settings = settings
        self._wake = wake
        self._width = RangeWidth(settings.max_range_blocks)
        self._position: IndexPosition | None = None
        # Empty if the parent of the next block is unknown.
        self._recent_blocks = ChainHead(settings.journal_blocks + 1)
        self._stall_reason: str | None = None
        self._contradictions = 0
        self._job_indexes_built = False
        # Initially True, because the previous holder of the role may have stopped before it marked all expired jobs.
        self._expiry_marks_missing = True

    async def follow(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Follow the chain until cancelled or until the connection is lost. Errors of the node are retried."""
        await self._load_position(connection)
        while True:
            try:
                await self.catch_up(connection)
            except Retryable as error:
                await self.record_stall(connection, error)
            else:
                self._contradictions = 0
                if self._stall_reason is not None:
                    log.info("index resumed", block=self._position and self._position.block_number)
                    self._stall_reason = None
            await self._wake.wait(self._settings.block_time_ms / 1000)

    async def _load_position(self, connection: Connection) -> None:
        self._position = position = await read_position(connection)
        if position is not None and position.block_number >= self._settings.deploy_block:
            for block in reversed(
                await read_index_blocks(connection, position.block_number, self._settings.journal_blocks + 1)
            ):
                self._recent_blocks.add(block.number, "0x" + block.hash.hex())

    async def catch_up(self, connection: Connection) -> None:
        """Index up to the current target, and repeat while a pass took more than one step.

        Each pass also marks a batch of expired jobs, if any remain.
        """
        while True:
            target = await self._read_target()
            if self._classify_block(target) is BlockPosition.FORK:
                await self._rewind_fork(connection, target)
            steps = 0
            if target.height >= self._next_number:
                steps = await self._index_up_to(connection, target)
            self._expiry_marks_missing = await self._mark_expired_batch(connection, moved=steps > 0)
            if steps <= 1 and not self._expiry_marks_missing:
                return

    async def _mark_expired_batch(self, connection: Connection, *, moved: bool) -> bool:
        if self._position is None or not (moved or self._expiry_marks_missing):
            return False
        return await mark_next_expired_batch(connection, self._position)

    async def _read_target(self) -> BlockHeader:
        head = await self._source.head()
        # An old head is normal on a quiet chain. Only a head in the future indicates a wrong clock.
        metrics.clock_ahead.labels("chain").set(min(0.0, time.time() - head.time))
        metrics.chain_head.set(head.height)
        # Readiness reports the same lag, but only on request.
        if self._position is not None:
            metrics.index_lag.set(head.height - self._position.block_number)
        depth = self._settings.confirmations
        if depth == 0 or head.height == 0:
            return head
        number = max(0, head.height - depth)
        return (await self._source.headers(number, number))[0]

    async def _index_up_to(self, connection: Connection, target: BlockHeader) -> int:
        bulk_upto = target.height - self._settings.journal_blocks
        steps = 0
        if self._next_number <= bulk_upto:
            steps += await self._backfill(connection, bulk_upto)
        forked = False
        async with prefetch_ranges(
            self._source.blocks,
            self._next_number,
            target.height,
            lambda: _BLOCKS_PER_BATCH,
        ) as next_blocks:
            # An earlier holder of the role may have dropped the indexes. Blocks are prefetched while the indexes are
            # built.
            if not self._job_indexes_built:
                await build_job_indexes(connection)
                self._job_indexes_built = True
            while (blocks := await next_blocks()) is not None:
                if forked := self._classify_block(blocks[0].first) is BlockPosition.FORK:
                    break
                began = time.time()
                self._position = await apply_blocks(
                    connection, blocks, undo_window=self._settings.journal_blocks, rebuilding=self._is_rebuilding
                )
                applied = time.time()
                for block in blocks:
                    self._recent_blocks.add(block.last.height, block.last.hash)
                steps += len(blocks)
                await record_index_span(connection, blocks, began, applied)
        if forked:
            await self._rewind_fork(connection, target)
            # More than one step makes `catch_up` repeat at once.
            return 2
        if self._position is not None and self._position.rebuilding:
            self._position = await finish_rebuilding(connection, self._position)
            log.info("index rebuilt", block=self._position.block_number)
        return steps

    async def _backfill(self, connection: Connection, last: int) -> int:
        steps = 0
        if self._next_number == self._settings.deploy_block:
            self._job_indexes_built = False
            await drop_job_indexes(connection)
        ordinal = await next_job_ordinal(connection)
        async with prefetch_ranges(
            lambda first, last_of_range: self._source.range(first, last_of_range, self._width),
            self._next_number,
            last,
            lambda: self._width.width_blocks,
        ) as next_range:
            while (block_range := await next_range()) is not None:
                if self._classify_block(block_range.first) is BlockPosition.FORK:
                    # The loop in `_index_up_to` handles the fork.
                    break
                self._position, ordinal = await apply_range(
                    connection, block_range, ordinal, rebuilding=self._is_rebuilding
                )
                self._recent_blocks.restart(block_range.last.height, block_range.last.hash)
                steps += 1
        return steps

    @property
    def _next_number(self) -> int:
        return self._settings.deploy_block if self._position is None else self._position.block_number + 1

    @property
    def _is_rebuilding(self) -> bool:
        return self._position is not None and self._position.rebuilding

    def _classify_block(self, header: BlockHeader) -> BlockPosition:
        return self._recent_blocks.classify(header.height, header.hash, header.parent_hash)

    async def _rewind_fork(self, connection: Connection, target: BlockHeader) -> None:
        position = self._position
        if position is None:
            return
        ancestor = await find_common_ancestor(connection, self._source, min(position.block_number, target.height))
        if ancestor is not None and ancestor.number == position.block_number:
            raise inconsistency_error(
                f"block {ancestor.number} is on the node's chain, but the node also returned a block of another branch"
            )
        if ancestor is None:
            # The whole index is deleted next. Check first that this is a reorg and not an endpoint of another chain.
            if await self._source.chain_id() != self._settings.chain_id:
                raise inconsistency_error("the node now serves another chain: correct RPC_URL or RPC_URLS")
            log.warning("reorg below the journal: rebuilding the index", block=position.block_number)
            await self._restart_index(connection)
            depth = position.block_number - self._settings.deploy_block + 1
        else:
            depth = position.block_number - ancestor.number
            log.info("orphaned blocks rolled back", block=position.block_number, ancestor=ancestor.number, depth=depth)
            self._position = await roll_back_to(connection, ancestor, rebuilding=position.rebuilding)
            self._recent_blocks.forget_above(ancestor.number)
            self._expiry_marks_missing = True
        metrics.index_reorg_depth.observe(depth)

    async def _restart_index(self, connection: Connection) -> None:
        self._position = await restart_index(connection, self._settings.deploy_block)
        self._recent_blocks = ChainHead(self._settings.journal_blocks + 1)

    async def record_stall(self, connection: Connection, error: Retryable) -> None:
        """Log an error of `catch_up` once. Rebuild the index after several contradictions in a row."""
        if self._stall_reason != error.message:
            log.warning("index stalled", reason=error.message, code=error.code)
            self._stall_reason = error.message
        if not isinstance(error, Contradiction):
            return
        self._contradictions += 1
        if self._contradictions >= _MAX_CONTRADICTIONS:
            # The node repeats its answer, so the index must be wrong.
            log.warning("index contradicted by the chain: rebuilding the index")
            await self._restart_index(connection)
            self._contradictions = 0
