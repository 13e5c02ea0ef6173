"""The indexer: backfill in bulk, then block by block, for as long as this process holds the role."""

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

_STEP: Final = 16  # headers asked for at once; most reorgs are shallower
_BLOCKS_AT_ONCE: Final = 32  # near the head; fetched together, applied in one transaction
_CONTRADICTIONS_BELIEVED: Final = 5  # in a row; then it is our rows that are doubted


async def common_ancestor(connection: Connection, source: BlockSource, upto: int) -> KeptBlock | None:
    """The highest block at or below `upto` that is both indexed and the node's; None if all kept ones differ.

    Raises Retryable unless the node's headers hang together from there up: an index is not taken back on hearsay.
    """
    child_parent: str | None = None
    while kept := await kept_blocks(connection, upto, _STEP):
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
    """Index whenever this process holds the role, until cancelled. `wake`: hints that there may be a new block, from
    the relayer of this process or by notice from another's."""
    role = f"indexer:{settings.chain_id}"
    async with notices.subscribe(RELAY_ENDED, lambda _: wake()):
        await hold_role(database, role, lambda connection: IndexFollower(source, settings, wake).follow(connection))


class IndexFollower:
    """One term of the role. Its only state is the position and the blocks that can be undone, read when it begins."""

    def __init__(self, source: BlockSource, settings: IndexerSettings, wake: Wake) -> None:
        self._source = source
        self._settings = settings
        self._wake = wake
        self._width = RangeWidth(settings.getlogs_cap)
        self._position: IndexPosition | None = None
        self._head = ChainHead(settings.journal_blocks + 1)  # empty where the first block's parent is not known
        self._stalled: str | None = None
        self._contradictions = 0
        self._job_indexes_built = False
        self._marks_missing = True  # as far as is known; also when another term was ended in the middle of them

    async def follow(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Until cancelled, or until the connection is lost. Errors of the node are waited out."""
        await self._read_head(connection)
        while True:
            try:
                await self.catch_up(connection)
            except Retryable as error:
                await self.stall(connection, error)
            else:
                self._contradictions = 0
                if self._stalled is not None:
                    log.info("index goes on", block=self._position and self._position.block_number)
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
        """Index up to the block that is the target now, and on while that was more than one step. What expired at once,
        too much of it for one transaction, is marked in between."""
        while True:
            target = await self._target()
            if self._place(target) is HeadPlace.FORK:
                await self._fork(connection, target)
            steps = 0
            if target.height >= self._next:
                steps = await self._go_to(connection, target)
            self._marks_missing = await self._mark_more(connection, moved=steps > 0)
            self._measure()
            if steps <= 1 and not self._marks_missing:
                return

    async def _mark_more(self, connection: Connection, *, moved: bool) -> bool:
        if self._position is None or not (moved or self._marks_missing):
            return False
        return await mark_more(connection, self._position)

    # --- forward ---

    async def _target(self) -> BlockHeader:
        head = await self._source.head()
        metrics.index_head.set(head.height)
        # A block may be as old as it likes: only that it is ahead says something of a clock.
        metrics.clock_ahead.labels("chain").set(min(0.0, time.time() - head.time))
        if self._position is not None:  # readiness says the same, but only when somebody asks for it
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
            self._source.blocks, self._next, target.height, lambda: _BLOCKS_AT_ONCE
        ) as following:  # while the indexes are built, too
            if not self._job_indexes_built:  # also when it was another term that dropped them
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
                self._measure()
        if forked:
            await self._fork(connection, target)
            return 2  # look again at once
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
                    break  # the step by step that follows finds the fork
                self._position, ordinal = await apply_range(
                    connection, block_range, ordinal, rebuilding=self._rebuilding
                )
                self._head.restart(block_range.last.height, block_range.last.hash)
                steps += 1
                self._measure()
        return steps

    @property
    def _next(self) -> int:
        return self._settings.deploy_block if self._position is None else self._position.block_number + 1

    @property
    def _rebuilding(self) -> bool:
        return self._position is not None and self._position.rebuilding

    def _place(self, header: BlockHeader) -> HeadPlace:
        return self._head.place(header.height, header.hash, header.parent_hash)

    # --- back ---

    async def _fork(self, connection: Connection, target: BlockHeader) -> None:
        position = self._position
        if position is None:
            return
        ancestor = await common_ancestor(connection, self._source, min(position.block_number, target.height))
        if ancestor is not None and ancestor.number == position.block_number:
            raise lied(f"the child of block {ancestor.number} is not its child")
        if ancestor is None:
            # All is thrown away next: make sure that it is a reorg, and not an endpoint of another chain.
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
        metrics.index_reorgs.inc()
        metrics.index_reorg_depth.observe(depth)

    async def _start_over(self, connection: Connection) -> None:
        self._position = await start_over(connection, self._settings.deploy_block)
        self._head = ChainHead(self._settings.journal_blocks + 1)

    async def stall(self, connection: Connection, error: Retryable) -> None:
        """Log an error of `catch_up` once; after too many contradictions, rebuild the index."""
        if self._stalled != error.message:
            log.warning("index stalls", reason=error.message, code=error.code)
            self._stalled = error.message
        if not isinstance(error, Contradiction):
            return
        self._contradictions += 1
        if self._contradictions >= _CONTRADICTIONS_BELIEVED:
            # The node sticks to its story, so some of what it told before, and we wrote, was not true.
            log.warning("the chain contradicts the index: rebuilding it")
            await self._start_over(connection)
            self._contradictions = 0

    def _measure(self) -> None:
        if self._position is not None:
            metrics.index_cursor.set(self._position.block_number)
