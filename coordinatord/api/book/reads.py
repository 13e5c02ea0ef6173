"""Reads of the index by key, gathered; one reader per kind, with a connection of its own, shared by all requests of
this process."""

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import attrs
import structlog

from common.abi import topic
from common.messages.jobs import Order
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.book import book_sql, registries_sql
from coordinatord.api.book.book_sql import JobRow, read_posted
from coordinatord.api.book.registries_sql import ModelRow, ProviderRow
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.job_registry import JobRegistry, PostedOrder, RegisteredJob
from coordinatord.chain.contracts.logs import Decoder
from coordinatord.chain.rpc.chain_data import ChainLog
from coordinatord.chain.rpc.client import quantity, retryable_of
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.storage.database.batched_reads import BatchedReads, FreshValue, IndexRead
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.replicas import IndexSource, Replica, pools, prepared
from coordinatord.storage.database.snapshot_sql import Snapshot, read_snapshot

K = TypeVar("K")
V = TypeVar("V")


_PACE_KEPT: Final = 10.0  # seconds


class BlockPace:
    """Seconds between blocks, as the last that are kept came: for estimates alone."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: tuple[float, float | None] = (-math.inf, None)

    async def first_after(self, snapshot: Snapshot, at: int) -> int | None:
        """Number of the first block whose time is later than `at`, if they go on coming as they do; None where that is
        not known. The block after the index's at the least."""
        read_at, pace = self._known
        if self._clock() - read_at > _PACE_KEPT:
            try:
                async with self._database.connection() as connection:
                    pace = await book_sql.read_pace(connection)
            except Retryable:
                return None
            self._known = (self._clock(), pace)
        if pace is None:
            return None
        return snapshot.block_number + max(1, math.ceil((at + 1 - snapshot.block_time) / pace))


@attrs.frozen(slots=True)
class IndexReads:
    job: BatchedReads[bytes, IndexRead[JobRow]]
    model: BatchedReads[str, IndexRead[ModelRow]]
    provider: BatchedReads[int, IndexRead[ProviderRow]]
    position: FreshValue[Snapshot]
    pace: BlockPace
    lists: IndexSource[Database]

    @classmethod
    def over(cls, database: Database, replicas: Sequence[Replica] = ()) -> "IndexReads":
        """The position is the primary's in any case: it decides whether a standby's answer is of the present."""
        position = FreshValue(database.prepared_connection(), read_snapshot)
        return cls(
            job=BatchedReads(prepared(database, replicas, position), _by_key(book_sql.read_by_ids)),
            model=BatchedReads(prepared(database, replicas, position), _by_key(registries_sql.read_by_names)),
            provider=BatchedReads(prepared(database, replicas, position), _by_key(registries_sql.read_by_ids)),
            position=position,
            pace=BlockPace(database),
            lists=pools(database, replicas, position),
        )


@attrs.frozen(slots=True)
class MarketWindows:
    """Windows that the market takes, as far as the index is ready to tell: `is_ready` says whether it is."""

    index: IndexSource[Database]
    is_ready: Callable[[], Awaitable[bool]]

    async def read(self) -> tuple[int, ...] | None:
        """In seconds, the shortest first. None, and no error, where they are not known: nothing waits for them."""
        if not await self.is_ready():
            return None
        try:
            _, windows = await self.index.read(registries_sql.read_windows)
        except Retryable:
            return None
        return windows


def _by_key(
    read: Callable[[PreparedConnection, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
) -> Callable[[IndexSource[PreparedConnection], list[K]], Awaitable[dict[K, IndexRead[V]]]]:
    """Every key gets an answer, all of one snapshot."""

    async def read_all(source: IndexSource[PreparedConnection], keys: list[K]) -> dict[K, IndexRead[V]]:
        snapshot, values = await source.read(lambda line: read(line, keys))
        return {key: IndexRead(snapshot, values.get(key)) for key in keys}

    return read_all


log = structlog.get_logger(__name__)

_POSTED: Final = hex_of(
    topic(
        "JobPosted(bytes32,address,uint32,bytes32,uint32,uint128,uint128,uint32,uint32,uint32,uint64,uint16,uint128,"
        "string,bytes)"
    )
)
# Ranges of logs that one look may ask for. Two days, which no live job outlasts, are 18 of them with blocks of 2 s.
_MOST_RANGES: Final = 24


@attrs.frozen(slots=True)
class PostedJobs:
    """FeeTerms that a job was posted on: from the index, else from the chain's own logs.

    The registry keeps a hash of a job's terms, so every later call about the job carries them again. A job that the
    index has not reached yet, or is about to read again after a rebuild, is looked for in the logs, newest blocks
    first: an exit must not wait for the index. Nothing here has to be believed: the registry refuses terms that are not
    the job's, and the owner is checked against the job's id, which is a hash over it."""

    registry: JobRegistry
    decoder: Decoder
    first_block: int
    widest_range: int
    indexed: BatchedReads[bytes, RegisteredJob | None]

    @classmethod
    def over(
        cls, database: Database, registry: JobRegistry, decoder: Decoder, *, first_block: int, widest_range: int
    ) -> "PostedJobs":
        return cls(
            registry, decoder, first_block, widest_range, BatchedReads(database.prepared_connection(), read_posted)
        )

    async def find(self, job_id: bytes, code: str = "job_read") -> RegisteredJob | None:
        """None when the chain has no such job. Raises Retryable `not_ready` when it has one whose terms neither the
        index nor a search of the latest blocks tells. `code` names a failure to read the chain."""
        known = await self.indexed.get(job_id)
        if known is not None:
            return known
        if await self.registry.job(job_id, code) is None:
            return None
        found = await self._search(job_id)
        if found is None:
            raise Retryable("not_ready", "the index does not know the job yet", retry_after=1)
        log.info("terms of a job taken from the chain's logs", job=job_id.hex())
        return found

    async def _search(self, job_id: bytes) -> RegisteredJob | None:
        try:
            upto = quantity(await self.registry.rpc.call("eth_blockNumber"))
            width = self.widest_range
            for _ in range(_MOST_RANGES):
                if upto < self.first_block:
                    return None
                since = max(self.first_block, upto - width + 1)
                try:
                    logs = await self._logs(job_id, since, upto)
                except RpcError as error:
                    if error.meaning is not Meaning.RANGE_TOO_WIDE or width == 1:
                        raise
                    width = max(1, width // 4)
                    continue
                if logs:
                    return self._read(logs[0], job_id)
                upto = since - 1
        except RpcError as error:
            raise retryable_of(error, "eth_getLogs") from error
        return None

    async def _logs(self, job_id: bytes, first: int, last: int) -> list[ChainLog]:
        query = {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": hex_of(self.registry.address),
            "topics": [_POSTED, hex_of(job_id)],
        }
        return await self.registry.rpc.call_as(list[ChainLog], "eth_getLogs", query)

    def _read(self, found: ChainLog, job_id: bytes) -> RegisteredJob:
        try:
            event = self.decoder.decode(found)
        except Refused as broken:
            raise _lied(f"its log of a post is malformed: {broken}") from broken
        if not isinstance(event, contract_events.JobPosted) or event.job_id != job_id:
            raise _lied("it answered with another log than the one that was asked for")
        order = Order(
            c=event.c,
            model_id=event.model_id,
            sla_secs=event.sla_secs,
            rate_in=event.rate_in,
            rate_out=event.rate_out,
            units_in=event.units_in,
            units_out=event.units_out,
            designated=event.designated,
            expires_at=event.expires_at,
        )
        return RegisteredJob(PostedOrder(order, event.owner, FeeTerms(event.fee_bps, event.gas_fee)), event.pay_sig)


def _lied(how: str) -> Retryable:
    return Retryable("chain_unreachable", f"the node does not tell the truth: {how}")
