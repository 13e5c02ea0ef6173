"""Readiness of the index: the same answer in every process, from the position row and the node's head."""

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
from coordinatord.chain.contracts.job_registry import JobRegistry, read_terms
from coordinatord.chain.indexer.position_sql import IndexPosition, read_position_in_time
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_result, quantity
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import Reverted, View, decoded, read_many
from coordinatord.storage.database.connections import Database, is_read_only
from coordinatord.storage.database.locks import is_held
from coordinatord.storage.database.role_connection import role_of

Reason = Literal["ready", "cold_start", "trailing", "reorg", "chain_unreachable"]

# Readiness fails when no process has held the relayer's role for this long.
RELAYER_ABSENT_S: Final = 10.0
# Timeout for the node's head and for the database. Probes do not wait longer.
_READ_TIMEOUT_S: Final = 3.0


@attrs.frozen(slots=True)
class ReadinessReport:
    ready: bool
    reason: Reason
    cursor: int | None
    head_block: int | None
    lag: int | None
    # Another obstacle, in one word: the body's `code`.
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
        # A separate connection, because statements of the pool hang with the database, and callers would keep getting
        # the last good report.
        self._line = database.prepared_connection(timeout_s)
        self._timeout_s = timeout_s
        self._rpc = rpc
        self._role = role
        self._relayer = role_of(chain_id, role.account)
        self._absent_since: float | None = None
        self._supervisor = supervisor
        self._keep = block_time_ms / 1000
        self._ready_lag = ready_lag_blocks
        self._clock = clock
        self._last: ReadinessReport | None = None
        self._asked_at = 0.0
        self._asking = anyio.Lock()

    async def is_ready(self) -> bool:
        """Return True if index-backed routes may be served."""
        return (await self.report()).ready

    async def report(self) -> ReadinessReport:
        """Return the last report while it is fresh, or a new one. Never raises.

        `fault` is `database_unavailable` when the database does not answer (the reason is then `cold_start`),
        `database_read_only` when the database answers and rejects writes, and `relayer_absent` when no process has
        held the relayer's role for a while.
        """
        if self._last is not None and (self._fresh() or self._asking.locked()):
            return self._last
        async with self._asking:
            # Another task may have read it while this one waited for the lock.
            if self._last is None or not self._fresh():
                self._last = await self._ask()
                self._asked_at = self._clock()
            return self._last

    def _fresh(self) -> bool:
        return self._clock() - self._asked_at < self._keep

    async def _ask(self) -> ReadinessReport:
        head: int | None = None
        with anyio.move_on_after(self._timeout_s):
            head = await self._head()
        position: IndexPosition | None = None
        fault: str | None = None
        if self._role.is_missing:
            fault = "no_relayer_role"
        elif self._supervisor.failing is not None:
            fault = f"task_failing:{self._supervisor.failing}"
        try:
            position = await read_position_in_time(self._line)
            if await is_read_only(self._line):
                fault = "database_read_only"
            elif await self._relayer_is_absent():
                fault = "relayer_absent"
        except Retryable:
            fault = "database_unavailable"
        report = attrs.evolve(judge(position, head, self._ready_lag), fault=fault)
        if report.lag is not None:
            metrics.index_lag.set(report.lag)
        return report

    async def _relayer_is_absent(self) -> bool:
        if await is_held(self._line, self._relayer):
            self._absent_since = None
            return False
        if self._absent_since is None:
            self._absent_since = self._clock()
        return self._clock() - self._absent_since >= RELAYER_ABSENT_S

    async def _head(self) -> int | None:
        """Return the head, or None. The same request reads the relayer's role."""
        try:
            head, *roles = await self._rpc.batch([RpcCall("eth_blockNumber"), *self._role.calls()])
            if isinstance(head, RpcError):
                return None
            self._role.hear(roles)
            return quantity(decode_result(head, str, "eth_blockNumber"))
        except (Retryable, RpcError):
            return None


def judge(position: IndexPosition | None, head: int | None, ready_lag: int) -> ReadinessReport:
    """Return the report for an index at `position` and a node at `head`. None means no indexed block, or no answer.

    A head far below the index means that the node serves another chain or branch than the indexed one.
    """
    if head is None:
        return ReadinessReport(False, "chain_unreachable", None, None, None)
    if position is None:
        return ReadinessReport(False, "cold_start", None, head, None)
    lag = head - position.block_number
    if position.rebuilding:
        # Before the first replayed block, the position is one below it, which may be -1. Report no negative block.
        return ReadinessReport(False, "reorg", max(0, position.block_number), head, lag)
    if abs(lag) > ready_lag:
        return ReadinessReport(False, "trailing", position.block_number, head, lag)
    return ReadinessReport(True, "ready", position.block_number, head, lag)


@attrs.frozen(slots=True)
class ChainNow:
    gas_price: int
    head_block: int
    terms: FeeTerms
    windows: tuple[int, ...] | None = None


@attrs.frozen(slots=True)
class DeploymentReads:
    book: AddressBook
    registry: JobRegistry
    windows: MarketWindows
    block_time_ms: int
    gateway_url: str | None = None

    async def now(self) -> ChainNow:
        """Read the chain's state in one request. Raise Retryable `config_read` when the node answers with an error.

        The windows come from the index, and their absence is not an error.
        """
        fees_view = attrs.evolve(self.registry.fees_view(), code="config_read")
        calls: list[View | RpcCall] = [RpcCall("eth_gasPrice"), RpcCall("eth_blockNumber"), fees_view]
        gas_price, head, fees = await read_many(self.registry.rpc, calls, "config_read")
        if isinstance(fees, Reverted):
            raise Retryable("relay_unavailable", "the job registry does not return its fees", "config_read")
        terms = decoded(fees, read_terms, "config_read")
        return ChainNow(_number(gas_price), _number(head), terms, await self.windows.read())


def _number(answer: bytes | Reverted) -> int:
    if isinstance(answer, Reverted):
        raise Retryable("relay_unavailable", "the node refuses to return its state", "config_read")
    if len(answer) > 32:
        raise Retryable("relay_unavailable", "the node's number is longer than 256 bits", "config_read")
    return int.from_bytes(answer, "big")
