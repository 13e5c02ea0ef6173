"""Readiness of the index, computed from the indexed position and the node's head, which are the same for every
process."""

import time
from collections.abc import Callable
from typing import Final, Literal

import anyio
import attrs

from common.address_book import AddressBook
from common.daemon.supervision import Supervisor
from common.quotes import FeeTerms
from coordinatord.api.book.reads import MarketWindows
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry, decode_terms
from coordinatord.chain.indexer.position_sql import IndexPosition, read_position_within_timeout
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_quantity, decode_result
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import Reverted, View, decode_view, read_many
from coordinatord.storage.database.connections import Database, is_read_only
from coordinatord.storage.database.locks import is_role_held
from coordinatord.storage.database.role_connection import relayer_role_name

ReadinessReason = Literal["ready", "cold_start", "trailing", "reorg", "chain_unreachable"]

# Readiness fails when no process has held the relayer's role for this long.
MAX_RELAYER_ABSENCE_S: Final = 10.0
# Timeout for reads of the node's head and of the database. Health probes do not wait longer than this.
_READ_TIMEOUT_S: Final = 3.0


@attrs.frozen(slots=True)
class ReadinessReport:
    ready: bool
    reason: ReadinessReason
    cursor: int | None
    head_block: int | None
    lag: int | None
    # Cause other than the index that keeps the process from being ready. The response has this cause as `code`.
    fault: str | None = None


class ReadinessCheck:
    """Reads the state at most once per `block_time_ms`. In between, and while a read is running, callers get the
    last report."""

    def __init__(
        self,
        database: Database,
        rpc: Rpc,
        *,
        block_time_ms: int,
        ready_lag_blocks: int,
        role: RelayerRole,
        chain_id: int,
        supervisor: Supervisor,
        timeout_s: float = _READ_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A separate connection with a timeout. On a connection of the pool, a read would hang with the database, and
        # callers would keep getting the last good report.
        self._connection = database.prepared_connection(timeout_s)
        self._timeout_s = timeout_s
        self._rpc = rpc
        self._role = role
        self._relayer = relayer_role_name(chain_id, role.account)
        self._absent_since: float | None = None
        self._supervisor = supervisor
        self._cache_s = block_time_ms / 1000
        self._ready_lag = ready_lag_blocks
        self._clock = clock
        self._last: ReadinessReport | None = None
        self._reported_at = 0.0
        self._report_lock = anyio.Lock()

    async def is_ready(self) -> bool:
        """Return True if index-backed routes may be served."""
        return (await self.report()).ready

    async def report(self) -> ReadinessReport:
        """Return the last report while it is fresh, or a new one. Never raises.

        Values of `fault`:
        - `database_unavailable`: the database does not answer. The reason is then `cold_start`.
        - `database_read_only`: the database answers and rejects writes.
        - `relayer_absent`: no process has run the relayer for MAX_RELAYER_ABSENCE_S.
        - `no_relayer_role`: a registry contract has not granted the relayer's account the role.
        - `task_failing:NAME`: a task of this process keeps failing.
        """
        if self._last is not None and (self._is_fresh() or self._report_lock.locked()):
            return self._last
        async with self._report_lock:
            # Another task may have made a new report while this task waited for the lock.
            if self._last is None or not self._is_fresh():
                self._last = await self._new_report()
                self._reported_at = self._clock()
            return self._last

    def _is_fresh(self) -> bool:
        return self._clock() - self._reported_at < self._cache_s

    async def _new_report(self) -> ReadinessReport:
        head: int | None = None
        with anyio.move_on_after(self._timeout_s):
            head = await self._read_head()
        position: IndexPosition | None = None
        fault: str | None = None
        if self._role.is_missing:
            fault = "no_relayer_role"
        elif self._supervisor.failing_task is not None:
            fault = f"task_failing:{self._supervisor.failing_task}"
        try:
            position = await read_position_within_timeout(self._connection)
            if await is_read_only(self._connection):
                fault = "database_read_only"
            elif await self._relayer_is_absent():
                fault = "relayer_absent"
        except Retryable:
            fault = "database_unavailable"
        report = attrs.evolve(judge_readiness(position, head, self._ready_lag), fault=fault)
        if report.lag is not None:
            metrics.index_lag.set(report.lag)
        return report

    async def _relayer_is_absent(self) -> bool:
        if await is_role_held(self._connection, self._relayer):
            self._absent_since = None
            return False
        if self._absent_since is None:
            self._absent_since = self._clock()
        return self._clock() - self._absent_since >= MAX_RELAYER_ABSENCE_S

    async def _read_head(self) -> int | None:
        """Return the node's head, or None if the node does not answer. The same request reads the relayer's role."""
        try:
            head, *roles = await self._rpc.batch([RpcCall("eth_blockNumber"), *self._role.role_calls()])
            if isinstance(head, RpcError):
                return None
            self._role.learn_role(roles)
            return decode_quantity(decode_result(head, str, "eth_blockNumber"))
        except (Retryable, RpcError):
            return None


def judge_readiness(position: IndexPosition | None, head: int | None, ready_lag: int) -> ReadinessReport:
    """Return the report for an index at `position` and a node at `head`.

    `position` is None before the first indexed block. `head` is None if the node did not answer. The index is also not
    ready if the head is far below `position`, because then the node serves another chain or branch.
    """
    if head is None:
        return ReadinessReport(False, "chain_unreachable", None, None, None)
    if position is None:
        return ReadinessReport(False, "cold_start", None, head, None)
    lag = head - position.block_number
    if position.rebuilding:
        # Before the first replayed block, the position may be -1. Never report a negative block.
        return ReadinessReport(False, "reorg", max(0, position.block_number), head, lag)
    if abs(lag) > ready_lag:
        return ReadinessReport(False, "trailing", position.block_number, head, lag)
    return ReadinessReport(True, "ready", position.block_number, head, lag)


@attrs.frozen(slots=True)
class ChainState:
    gas_price: int
    head_block: int
    terms: FeeTerms
    windows: tuple[int, ...] | None = None


@attrs.frozen(slots=True)
class DeploymentReader:
    address_book: AddressBook
    registry: JobRegistry
    windows: MarketWindows
    block_time_ms: int
    gateway_url: str | None = None

    async def read_state(self) -> ChainState:
        """Read the chain's state in one request. Raise Retryable `config_read` when the node answers with an error.

        The windows come from the index, and their absence is not an error.
        """
        fees_view = attrs.evolve(self.registry.fees_view(), error_code="config_read")
        calls: list[View | RpcCall] = [RpcCall("eth_gasPrice"), RpcCall("eth_blockNumber"), fees_view]
        gas_price, head, fees = await read_many(self.registry.rpc, calls, "config_read")
        if isinstance(fees, Reverted):
            raise Retryable("relay_unavailable", "the job registry does not return its fees", "config_read")
        terms = decode_view(fees, decode_terms, "config_read")
        return ChainState(_decode_number(gas_price), _decode_number(head), terms, await self.windows.read())


def _decode_number(answer: bytes | Reverted) -> int:
    if isinstance(answer, Reverted):
        raise Retryable("relay_unavailable", "the node rejects eth_gasPrice or eth_blockNumber", "config_read")
    if len(answer) > 32:
        raise Retryable("relay_unavailable", "the node returned a number of more than 256 bits", "config_read")
    return int.from_bytes(answer, "big")
