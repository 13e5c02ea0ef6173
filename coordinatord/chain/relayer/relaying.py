"""Relaying for services: `submit` stores an op in the outbox, and `wait` returns its outcome.

A caller reads its relay's state when a notification wakes it, and also after a pause, in case a notification was lost.
Callers share reads.
"""

import random
import time
from contextlib import suppress
from typing import Final, NoReturn, TypeAlias

import anyio
import attrs
import structlog

from common.tracing import spans
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.chain.indexer.position_sql import read_position_within_timeout
from coordinatord.chain.relayer import outbox_sql, queue_sql
from coordinatord.chain.relayer.budgets import GasBudgets, over_budget_error
from coordinatord.chain.relayer.budgets_sql import Budget
from coordinatord.chain.relayer.outbox_sql import (
    NewRelay,
    NotQueued,
    QueuedRelay,
    QueueOutcome,
    RelayKind,
    RelayStatus,
)
from coordinatord.chain.relayer.role import KINDS_WITHOUT_ROLE, RelayerRole, lacking_role_error, raise_if_role_lacking
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import INDEX_MOVED, RELAY_ENDED, Notices
from coordinatord.storage.database.prepared import PreparedConnection

log = structlog.get_logger(__name__)

# A caller waits this long for the receipt after the broadcast.
RECEIPT_WAIT_S: Final = 60.0
# A caller waits this long for the index to show the receipt's block.
INDEX_WAIT_S: Final = 5.0
# Maximum age of the role that was last read.
_MAX_ROLE_AGE_S: Final = 15.0
_MAX_POLL_INTERVAL_S: Final = 1.0
# A full queue usually has room within milliseconds. Only a queue that stays full is reported.
_QUEUE_ROOM_WAIT_S: Final = 0.5
_QUEUE_ROOM_PAUSES_S: Final = (0.02, 0.06)


@attrs.frozen(slots=True)
class RelayMined:
    """The op took effect, and this deployment's index shows it, unless the index lags by more than a few seconds."""

    tx_hash: bytes
    block_number: int


@attrs.frozen(slots=True)
class RefusedByChain:
    """The chain refused the op, which had no effect. `name` is the contract's error, or None for an unknown error with
    its data in `raw`."""

    name: str | None
    raw: bytes


@attrs.frozen(slots=True)
class RelayBusy:
    """Too many relays of this subject are under way."""


@attrs.frozen(slots=True)
class NoReceipt:
    """A node may have the transaction, but the transaction was not mined in time. The transaction is still watched
    and may take effect later."""

    tx_hash: bytes


Outcome: TypeAlias = RelayMined | RefusedByChain | RelayBusy | NoReceipt

_DROPPED_MESSAGES: Final = {
    "relay_queue_timeout": "the relay queue did not move in time; try again",
    outbox_sql.FEES_ABOVE_CEILING: "the chain's fees are above what the coordinator offers; try again later",
    "relayer_funds": "the coordinator's account is out of native coin; try again later",
    "nonce_conflict": "the coordinator's account lost a race for a nonce; try again",
    "rate_limited": "the RPC endpoint rate-limits requests; try again",
    "endpoint_refused": "the RPC endpoint refuses the coordinator's requests",
}


_LOST_MESSAGE: Final = (
    "the database lost this request in a failover; it may still take effect: send the same request again"
)

# Codes of the API specification, by internal reason.
_PUBLIC_CODES: Final = {outbox_sql.FEES_ABOVE_CEILING: "relay_queue_timeout"}


def _dropped_error(reason: str) -> Retryable:
    message = _DROPPED_MESSAGES.get(reason, "the RPC endpoint failed; try again")
    return Retryable("relay_unavailable", message, _PUBLIC_CODES.get(reason, reason))


async def _read_indexed_block(reader: PreparedConnection, _: list[None]) -> dict[None, int]:
    position = await read_position_within_timeout(reader)
    return {None: -1 if position is None else position.block_number}


class Relaying:
    """Sends the relays of one market deployment. `run` must be running in a task group of the application."""

    def __init__(
        self,
        database: Database,
        notices: Notices,
        *,
        budgets: GasBudgets,
        max_depth: int,
        queue_timeout_ms: int,
        role: RelayerRole | None = None,
        receipt_wait_s: float = RECEIPT_WAIT_S,
    ) -> None:
        self._database = database
        self._notices = notices
        self.budgets = budgets
        self._max_depth = max_depth
        self._queue_timeout_ms = queue_timeout_ms
        self._poll_interval_s = min(_MAX_POLL_INTERVAL_S, queue_timeout_ms / 4000)
        self._role = role
        self.receipt_wait_s = receipt_wait_s
        # Callers of `wait`, by relay.
        self._waiting: dict[int, set[Wake]] = {}
        self._awaiting_index: set[Wake] = set()
        # Callers that arrive during a transaction share the next one. Transactions that notify commit one after
        # another, so separate ones would limit the whole deployment to the speed of its disk.
        self._submissions: BatchedReads[NewRelay, QueueOutcome] = BatchedReads(database, self._write_relays)
        reader = database.prepared_connection()
        self._statuses: BatchedReads[int, RelayStatus | None] = BatchedReads(reader, outbox_sql.read_statuses)
        self._claims: BatchedReads[tuple[bytes, bytes], bool] = BatchedReads(reader, outbox_sql.read_claims_under_way)
        self._indexed_block: BatchedReads[None, int] = BatchedReads(reader, _read_indexed_block)

    @property
    def _lacks_role(self) -> bool:
        """True if the account lacks its role according to a recent read. An older read is ignored, because it may be
        outdated."""
        role = self._role
        return role is not None and bool(role.missing_in) and time.monotonic() - role.read_at < _MAX_ROLE_AGE_S

    async def relay(self, new_relay: NewRelay) -> Outcome:
        """Submit the op, then wait for its outcome."""
        submitted = await self.submit(new_relay)
        return await self.wait(submitted) if isinstance(submitted, QueuedRelay) else submitted

    async def is_claiming(self, wallet: bytes, job_id: bytes) -> bool:
        """Return True while a claim of the job by this wallet is under way."""
        return await self._claims.get((job_id, wallet))

    async def submit(self, new_relay: NewRelay) -> QueuedRelay | RelayBusy | RefusedByChain:
        """Store the op in the outbox, or join an equal request under way. From then on the op is sent even if the
        caller leaves. Raise Retryable `relay_unavailable` when the queue is full, and `busy` when the signer's budget
        is used up."""
        if self._lacks_role and new_relay.kind not in (*KINDS_WITHOUT_ROLE, RelayKind.SETTLE):
            raise lacking_role_error()
        match await self._store_when_room(new_relay):
            case NotQueued.SUBJECT_BUSY:
                return RelayBusy()
            case NotQueued.QUEUE_FULL:
                raise Retryable("relay_unavailable", "the relay queue is full; try again", "relay_queue_full", 1)
            case NotQueued.OVER_BUDGET:
                if new_relay.spending is None:
                    raise AssertionError("the outbox reported a relay without a budget as over its budget")
                raise over_budget_error(new_relay.spending.gas_limits.budget)
            case NotQueued.OVER_NEWCOMERS_BUDGET:
                raise over_budget_error(Budget.NEWCOMERS)
            case NotQueued.INSOLVENT:
                metrics.budget_refusals.labels("balance").inc()
                return RefusedByChain("InsufficientBalance", b"")
            case QueuedRelay() as queued:
                await self._store_trace(queued)
                return queued

    async def _store_when_room(self, new: NewRelay) -> QueueOutcome:
        """Store the op. If the queue is full, wait for room for a short time."""
        deadline = anyio.current_time() + _QUEUE_ROOM_WAIT_S
        while True:
            submitted = await self._submissions.get(new)
            if submitted is not NotQueued.QUEUE_FULL or anyio.current_time() >= deadline:
                return submitted
            await anyio.sleep(random.uniform(*_QUEUE_ROOM_PAUSES_S))  # noqa: S311 - spreads retries

    async def _store_trace(self, queued: QueuedRelay) -> None:
        """Store the context of a traced request, for the spans of its relay, its blocks and its provider."""
        context = spans.current_context()
        if context is None or not spans.is_sampled(context) or queued.is_duplicate:
            return
        try:
            async with self._database.connection() as connection:
                await traces_sql.store_trace(
                    connection, queued.id, queued.relay.kind.value, queued.relay.subject, context
                )
        except Retryable as error:
            log.debug("trace not stored", id=queued.id, reason=str(error))

    async def wait(self, queued: QueuedRelay) -> Outcome:
        """Wait until the relay has ended, and until the index shows the block of a mined relay. Raise Retryable
        `relay_unavailable` when the relay was dropped, when no node accepted its transaction in time, or when the
        database lost the relay."""
        status, sent_hash = await self._wait_for_status(queued)
        match status:
            case RelayStatus(state="mined", tx_hash=bytes(tx_hash), block_number=int(block_number)):
                await self._wait_for_index(block_number)
                return RelayMined(tx_hash, block_number)
            case RelayStatus(state="refused", reason=name, raw=raw):
                raise_if_role_lacking(name)
                return RefusedByChain(name, raw or b"")
            case RelayStatus(state="dropped", reason=reason):
                raise _dropped_error(reason or "rpc_internal")
        if sent_hash is not None:
            return NoReceipt(sent_hash)
        # The relay is still queued, or nodes have refused its bytes so far. An equal request joins this relay.
        raise _dropped_error((status and status.refusal) or "relay_queue_timeout")

    async def _write_relays(self, database: Database, relays: list[NewRelay]) -> dict[NewRelay, QueueOutcome]:
        async def body(connection: Connection) -> list[QueueOutcome]:
            return await outbox_sql.submit_all(connection, relays, max_depth=self._max_depth)

        return dict(zip(relays, await database.transact(body), strict=True))

    async def _wait_for_status(self, queued: QueuedRelay) -> tuple[RelayStatus | None, bytes | None]:
        """Return the final status, or the status at the end of the wait, or None when no status could be read. Also
        return the hash of a transaction that a node may have. The queue's timeout applies until a node may have the
        bytes. Then the wait for the receipt begins."""
        wake = Wake()
        self._waiting.setdefault(queued.id, set()).add(wake)
        status: RelayStatus | None = None
        sent_hash: bytes | None = None
        # Wait one poll interval longer than the timeout, so that the last status is read after the timeout.
        until_sent = (
            anyio.current_time() + self._queue_timeout_ms / 1000 + queued.relay.held_for_s + self._poll_interval_s
        )
        until_mined: float | None = None
        try:
            while True:
                try:
                    status = await self._statuses.get(queued.id)
                except Retryable as error:
                    log.debug("relay status not read", id=queued.id, reason=str(error))
                else:
                    if status is None or status.dedupe != queued.relay.dedupe:
                        log.warning("relay lost by the database", kind=queued.relay.kind.value, id=queued.id)
                        raise Retryable("relay_unavailable", _LOST_MESSAGE, "relay_queue_timeout", 1)
                    sent_hash = None if status.refusal is not None else status.tx_hash or sent_hash
                    if not status.is_live:
                        return status, sent_hash
                if sent_hash is not None and until_mined is None:
                    until_mined = anyio.current_time() + self.receipt_wait_s
                until = until_sent if sent_hash is None or until_mined is None else until_mined
                seconds = until - anyio.current_time()
                if seconds <= 0:
                    return status, sent_hash
                await wake.wait(min(seconds, self._poll_interval_s))
        finally:
            wakes = self._waiting[queued.id]
            wakes.discard(wake)
            if not wakes:
                del self._waiting[queued.id]

    async def _wait_for_index(self, block_number: int) -> None:
        wake = Wake()
        self._awaiting_index.add(wake)
        try:
            with anyio.move_on_after(INDEX_WAIT_S), suppress(Retryable):
                while await self._indexed_block.get(None) < block_number:
                    await wake.wait(self._poll_interval_s)
        finally:
            self._awaiting_index.discard(wake)

    async def run(self) -> NoReturn:
        """Wake callers of `wait`. Drop relays that exceeded the queue timeout. Include relays of other processes,
        because those processes may have crashed."""
        async with (
            self._notices.subscribe(RELAY_ENDED, self._wake_relay_callers),
            self._notices.subscribe(INDEX_MOVED, self._wake_index_callers),
        ):
            while True:
                try:
                    async with self._database.connection() as connection:
                        dropped = await queue_sql.drop_overdue_relays(connection, self._queue_timeout_ms)
                    for kind in dropped.values():
                        metrics.relay_outcomes.labels(kind.value, "relay_queue_timeout").inc()
                except Retryable as error:
                    log.warning("overdue relays not dropped", reason=str(error))
                await anyio.sleep(self._poll_interval_s)

    def _wake_relay_callers(self, payload: str) -> None:
        if payload.isdecimal():
            for wake in self._waiting.get(int(payload), ()):
                wake()

    def _wake_index_callers(self, _: str) -> None:
        for wake in self._awaiting_index:
            wake()
