"""Run the indexer while this process holds the role: backfill in bulk, then follow block by block."""

import time
from typing import Final

import asyncpg
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.chain.head import ChainHead, HeadPlace
from coordinatord.chain.indexer.apply import (
    apply_blocks,
    apply_range,
    finish_rebuilding,
    go_back,
    mark_more,
    start_over,
)
from coordinatord.chain.indexer.changes import Contradiction
from coordinatord.chain.indexer.evidence import lied
from coordinatord.chain.indexer.fetch import BlockSource, RangeWidth, prefetched
from coordinatord.chain.indexer.position_sql import IndexPosition, read_position
from coordinatord.chain.indexer.tables_sql import build_job_indexes, count_jobs, drop_job_indexes
from coordinatord.chain.indexer.undo_sql import KeptBlock, kept_blocks
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import RELAY_ENDED, Notices

log = structlog.get_logger(__name__)

_HEADERS_PER_REQUEST: Final = 16
# Blocks near the head that are fetched together and applied in one transaction.
_BLOCKS_PER_BATCH: Final = 32
# Consecutive contradictions before the index, instead of the node, is assumed wrong and rebuilt.
_MAX_CONTRADICTIONS: Final = 5


async def common_ancestor(connection: Connection, source: BlockSource, upto: int) -> KeptBlock | None:
    """Return the highest block at or below `upto` that is in the index and on the node's chain, or None.

    Raise Retryable unless the node's headers are linked from that block up. An unlinked answer must not undo indexed
    blocks.
    """
    child_parent: str | None = None
    while kept := await kept_blocks(connection, upto, _HEADERS_PER_REQUEST):
        headers = await source.headers(kept[-1].number, kept[0].number)
        if child_parent is not None and headers[-1].hash != child_parent:
            raise lied(f"block {kept[0].number} is not the parent of the block after it")
        for block, header in zip(kept, reversed(headers), strict=True):
            if bytes.fromhex(header.hash[2:]) == block.hash:
                return block
        child_parent = headers[0].parent_hash
        upto = kept[-1].number - 1
    return None


@attrs.frozen(slots=True, kw_only=True)
class IndexerSettings:
    chain_id: int
    deploy_block: int
    getlogs_cap: int
    block_time_ms: int
    confirmations: int
    journal_blocks: int


async def run_indexer(
    database: Database, source: BlockSource, settings: IndexerSettings, notices: Notices, wake: Wake
) -> None:
    """Run the indexer whenever this process holds the role, until cancelled. `wake` signals that a new block may
    exist. Its hints come from this process's relayer, or by notification from another process."""
    role = f"indexer:{settings.chain_id}"
    async with notices.subscribe(RELAY_ENDED, lambda _: wake()):
        await hold_role(database, role, lambda connection: IndexFollower(source, settings, wake).follow(connection))


class IndexFollower:
    """One term of the indexer role. Its state is the position and the blocks that can be undone, both read at its
    start."""

    def __init__(self, source: BlockSource, settings: IndexerSettings, wake: Wake) -> None:
        self._source = source
        self._settings = settings
        self._wake = wake
        self._width = RangeWidth(settings.getlogs_cap)
        self._position: IndexPosition | None = None
        # Empty if the parent of the next block is unknown.
        self._head = ChainHead(settings.journal_blocks + 1)
        self._stalled: str | None = None
        self._contradictions = 0
        self._job_indexes_built = False
        # Initially True, because the previous term may have ended between two batches of marks.
        self._marks_missing = True

    async def follow(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Follow the chain until cancelled or until the connection is lost. Errors of the node are retried."""
        await self._read_head(connection)
        while True:
            try:
                await self.catch_up(connection)
            except Retryable as error:
                await self.stall(connection, error)
            else:
                self._contradictions = 0
                if self._stalled is not None:
                    log.info("index resumed", block=self._position and self._position.block_number)
                    self._stalled = None
            await self._wake.wait(self._settings.block_time_ms / 1000)

    async def _read_head(self, connection: Connection) -> None:
        self._position = position = await read_position(connection)
        if position is not None and position.block_number >= self._settings.deploy_block:
            for block in reversed(
                await kept_blocks(connection, position.block_number, self._settings.journal_blocks + 1)
            ):
                self._head.add(block.number, "0x" + block.hash.hex())

    async def catch_up(self, connection: Connection) -> None:
        """Index up to the current target, and repeat while more than one step was needed.

        Between the steps, mark expired jobs that exceeded one transaction's batch.
        """
        while True:
            target = await self._target()
            if self._place(target) is HeadPlace.FORK:
                await self._fork(connection, target)
            steps = 0
            if target.height >= self._next:
                steps = await self._go_to(connection, target)
            self._marks_missing = await self._mark_more(connection, moved=steps > 0)
            if steps <= 1 and not self._marks_missing:
                return

    async def _mark_more(self, connection: Connection, *, moved: bool) -> bool:
        if self._position is None or not (moved or self._marks_missing):
            return False
        return await mark_more(connection, self._position)

    async def _target(self) -> BlockHeader:
        head = await self._source.head()
        # An old head is normal on a quiet chain. Only a head in the future indicates a wrong clock.
        metrics.clock_ahead.labels("chain").set(min(0.0, time.time() - head.time))
        # Readiness reports the same value, but only on request.
        if self._position is not None:
            metrics.index_lag.set(head.height - self._position.block_number)
        depth = self._settings.confirmations
        if depth == 0 or head.height == 0:
            return head
        number = max(0, head.height - depth)
        return (await self._source.headers(number, number))[0]

    async def _go_to(self, connection: Connection, target: BlockHeader) -> int:
        bulk_upto = target.height - self._settings.journal_blocks
        steps = 0
        if self._next <= bulk_upto:
            steps += await self._backfill(connection, bulk_upto)
        forked = False
        async with prefetched(
            self._source.blocks,
            self._next,
            target.height,
            lambda: _BLOCKS_PER_BATCH,
            # Prefetch continues while the indexes are built.
        ) as following:
            # An earlier term may have dropped the indexes.
            if not self._job_indexes_built:
                await build_job_indexes(connection)
                self._job_indexes_built = True
            while (blocks := await following()) is not None:
                if forked := self._place(blocks[0].first) is HeadPlace.FORK:
                    break
                self._position = await apply_blocks(
                    connection, blocks, window=self._settings.journal_blocks, rebuilding=self._rebuilding
                )
                for block in blocks:
                    self._head.add(block.last.height, block.last.hash)
                steps += len(blocks)
        if forked:
            await self._fork(connection, target)
            # Makes the caller look again at once.
            return 2
        if self._position is not None and self._position.rebuilding:
            self._position = await finish_rebuilding(connection, self._position)
            log.info("index rebuilt", block=self._position.block_number)
        return steps

    async def _backfill(self, connection: Connection, last: int) -> int:
        steps = 0
        if self._next == self._settings.deploy_block:
            self._job_indexes_built = False
            await drop_job_indexes(connection)
        ordinal = await count_jobs(connection)
        async with prefetched(
            lambda first, upto: self._source.range(first, upto, self._width),
            self._next,
            last,
            lambda: self._width.blocks,
        ) as following:
            while (block_range := await following()) is not None:
                if self._place(block_range.first) is HeadPlace.FORK:
                    # The loop in `_go_to` handles the fork.
                    break
                self._position, ordinal = await apply_range(
                    connection, block_range, ordinal, rebuilding=self._rebuilding
                )
                self._head.restart(block_range.last.height, block_range.last.hash)
                steps += 1
        return steps

    @property
    def _next(self) -> int:
        return self._settings.deploy_block if self._position is None else self._position.block_number + 1

    @property
    def _rebuilding(self) -> bool:
        return self._position is not None and self._position.rebuilding

    def _place(self, header: BlockHeader) -> HeadPlace:
        return self._head.place(header.height, header.hash, header.parent_hash)

    async def _fork(self, connection: Connection, target: BlockHeader) -> None:
        position = self._position
        if position is None:
            return
        ancestor = await common_ancestor(connection, self._source, min(position.block_number, target.height))
        if ancestor is not None and ancestor.number == position.block_number:
            raise lied(f"the child of block {ancestor.number} is not its child")
        if ancestor is None:
            # The whole index is deleted next. Check first that this is a reorg and not an endpoint of another chain.
            if await self._source.chain_id() != self._settings.chain_id:
                raise lied("it serves another chain than it did")
            log.warning("reorg below the journal: rebuilding the index", block=position.block_number)
            await self._start_over(connection)
            depth = position.block_number - self._settings.deploy_block + 1
        else:
            depth = position.block_number - ancestor.number
            log.info("reorg undone", block=position.block_number, ancestor=ancestor.number, depth=depth)
            self._position = await go_back(connection, ancestor, rebuilding=position.rebuilding)
            self._head.go_back(ancestor.number)
            self._marks_missing = True
        metrics.index_reorg_depth.observe(depth)

    async def _start_over(self, connection: Connection) -> None:
        self._position = await start_over(connection, self._settings.deploy_block)
        self._head = ChainHead(self._settings.journal_blocks + 1)

    async def stall(self, connection: Connection, error: Retryable) -> None:
        """Log an error of `catch_up` once. Rebuild the index after several contradictions in a row."""
        if self._stalled != error.message:
            log.warning("index stalled", reason=error.message, code=error.code)
            self._stalled = error.message
        if not isinstance(error, Contradiction):
            return
        self._contradictions += 1
        if self._contradictions >= _MAX_CONTRADICTIONS:
            # The node repeats its answer, so the earlier data in the index must be wrong.
            log.warning("the chain contradicts the index: rebuilding it")
            await self._start_over(connection)
            self._contradictions = 0
