"""The relayer of one account, in the process that holds its role."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
import asyncpg
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.chain.relayer import outbox_sql, queue_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.broadcast import SendResult, SentVersion, apply_sent_versions, broadcast
from coordinatord.chain.relayer.fees import initial_fee
from coordinatord.chain.relayer.in_flight import PendingTxs
from coordinatord.chain.relayer.intake import RelayIntake
from coordinatord.chain.relayer.receipt_watcher import ReceiptWatcher
from coordinatord.chain.relayer.repair import raise_fees, repair_nonces
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.signers import AccountSigner, SignerUnavailable
from coordinatord.chain.relayer.tx_size import AdaptiveTxLimits
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import RELAY_QUEUED, Notices
from coordinatord.storage.database.role_connection import RoleConnection, relayer_role_name

log = structlog.get_logger(__name__)

# Pause after a node did not answer.
_RETRY_PAUSE_S: Final = 0.25
# Longest wait for a notification before the queue is read anyway. Also the interval of the queue's metrics.
_QUEUE_POLL_INTERVAL_S: Final = 2.0
# Interval of account reads while the head is unchanged.
_ACCOUNT_REFRESH_INTERVAL_S: Final = 1.0


async def run_relayer(
    database: Database,
    notices: Notices,
    rpc: Rpc,
    signer: AccountSigner,
    *,
    chain_id: int,
    settings: RelayerSettings,
    role: RelayerRole | None = None,
) -> None:
    """Relay from the signer's account whenever this process holds the account's role, until cancelled."""
    if settings.fee_ceiling.max_fee is None or settings.fee_ceiling.max_tip is None:
        log.warning("fees have no ceiling: set RELAY_MAX_FEE_GWEI and RELAY_MAX_TIP_GWEI", chain_id=chain_id)

    async def work(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        role_connection = RoleConnection(connection)
        async with role_connection.transaction() as inside:
            pending = PendingTxs(await transactions_sql.read_pending(inside, chain_id, signer.address))
            lost = PendingTxs(await transactions_sql.read_lost(inside, chain_id, signer.address))
        account = RelayerAccount(
            chain_id, signer, pending, lost, tx_limits=AdaptiveTxLimits(), fee_ceiling=settings.fee_ceiling, role=role
        )
        await _Worker(role_connection, rpc, account, notices, settings).run()

    await hold_role(database, relayer_role_name(chain_id, signer.address), work)


class _Worker:
    """Tasks of the relayer while this process holds the role. They drain the queue, send bytes and follow blocks
    concurrently, so that no nonce waits for another nonce's receipt."""

    def __init__(
        self,
        role_connection: RoleConnection,
        rpc: Rpc,
        account: RelayerAccount,
        notices: Notices,
        settings: RelayerSettings,
    ) -> None:
        self._role_connection = role_connection
        self._rpc = rpc
        self._account = account
        self._notices = notices
        self._settings = settings
        self._receipt_watcher = ReceiptWatcher(role_connection, rpc, account)
        self._intake = RelayIntake(role_connection, rpc, account, settings)
        self._caught_up = anyio.Event()
        self._wake_signing, self._wake_sending, self._wake_head_reads = Wake(), Wake(), Wake()
        self._account_read_at = 0.0

    async def run(self) -> None:
        async with (
            self._notices.subscribe(RELAY_QUEUED, lambda _: self._wake_signing()),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._follow_head)
            tasks.start_soon(self._send_due_versions)
            if not self._settings.replacements_only:
                tasks.start_soon(self._record_metrics)
                tasks.start_soon(self._drain_queue)

    async def _follow_head(self) -> None:
        """Apply new blocks, repair the account's nonces and raise fees, until cancelled."""
        while True:
            succeeded = await self._run_decision("follow the chain", self._process_head, may_change_node=True)
            busy = len(self._account.pending_txs) > 0
            pause = self._settings.busy_poll_interval_s if busy else self._settings.idle_poll_interval_s
            await self._wake_head_reads.wait(pause if succeeded else max(pause, _RETRY_PAUSE_S))

    async def _process_head(self) -> None:
        last_head = self._receipt_watcher.head
        block = await self._receipt_watcher.step()
        if block is None:
            return
        if block.hash != last_head or anyio.current_time() >= self._account_read_at + _ACCOUNT_REFRESH_INTERVAL_S:
            await self._account.read(self._rpc, block)
            self._account_read_at = anyio.current_time()
            self._record_fee_metrics()
            # Without the signer, signed transactions are still followed and sent. The repair is tried again at the next
            # head.
            with suppress(SignerUnavailable):
                await repair_nonces(self._role_connection, self._rpc, self._account, block)
            self._wake_signing()
        with suppress(SignerUnavailable):
            await raise_fees(self._role_connection, self._account, self._settings.mined_within_s)
        self._caught_up.set()
        self._wake_sending()

    def _record_fee_metrics(self) -> None:
        account = self._account
        if self._settings.replacements_only:
            # Another account relays, and sets these metrics.
            return
        metrics.relay_fees_above_ceiling.set(account.fee_ceiling.is_below(account.fee_market))
        metrics.relay_gas_price.labels("base_fee").set(account.fee_market.base_fee)
        metrics.relay_gas_price.labels("tip").set(account.fee_market.tip)
        reserve = self._settings.reserve_gas * initial_fee(account.fee_market, account.fee_ceiling).max_fee
        metrics.relayer_funds.labels("0x" + account.address.hex(), "reserve").set(reserve)

    async def _drain_queue(self) -> None:
        """Sign queued relays as they arrive."""
        await self._caught_up.wait()
        while True:
            if not await self._run_decision("sign relays", self._drain_once):
                await anyio.sleep(_RETRY_PAUSE_S)
            await self._wake_signing.wait(_QUEUE_POLL_INTERVAL_S)

    async def _drain_once(self) -> None:
        while await self._intake.run_round():
            self._wake_sending()
            self._wake_head_reads()

    async def _send_due_versions(self) -> None:
        """Send stored bytes that are due, in nonce order."""
        await self._caught_up.wait()
        while True:
            now = anyio.current_time()
            due = [tx for tx in self._account.pending_txs if tx.next_send_at <= now]
            if due:
                await self._apply_sent_versions(await broadcast(self._rpc, due))
                # Intake waits while signed bytes are unsent.
                self._wake_signing()
            next_due = min((tx.next_send_at for tx in self._account.pending_txs), default=math.inf)
            await self._wake_sending.wait(min(max(next_due - anyio.current_time(), 0.0), _ACCOUNT_REFRESH_INTERVAL_S))

    async def _apply_sent_versions(self, sent_versions: list[SentVersion]) -> None:
        before = {sent_version.tx.id: sent_version.tx.refusal_code for sent_version in sent_versions}
        apply_sent_versions(self._account, sent_versions, anyio.current_time())
        if any(sent_version.outcome is SendResult.NONCE_USED for sent_version in sent_versions):
            # Read the nonce now instead of with the next block.
            self._account_read_at = 0.0
        self._wake_head_reads()
        sent = [
            (sent_version.tx.id, sent_version.tx.refusal_code, sent_version.outcome is SendResult.ACCEPTED)
            for sent_version in sent_versions
            if sent_version.outcome is SendResult.ACCEPTED or sent_version.tx.refusal_code != before[sent_version.tx.id]
        ]
        if sent:
            async with self._role_connection.transaction() as connection:
                await transactions_sql.mark_sent(connection, sent)

    async def _record_metrics(self) -> None:
        """Record metrics of the queue, until cancelled."""
        while True:
            metrics.relay_transactions_pending.set(len(self._account.pending_txs))
            async with self._role_connection.transaction() as connection:
                waiting, age = await queue_sql.read_queue_lengths(connection)
            for priority in outbox_sql.Priority:
                metrics.relay_queue_depth.labels(priority.name.lower()).set(waiting.get(priority, 0))
            metrics.relay_queue_age.set(age)
            await anyio.sleep(_QUEUE_POLL_INTERVAL_S)

    async def _run_decision(
        self, description: str, decide: Callable[[], Awaitable[None]], *, may_change_node: bool = False
    ) -> bool:
        """Make one decision with the answers of one node. Return False when the node or the signer failed. An error of
        the database is raised, and this process gives up the role."""
        try:
            async with self._rpc.decision(may_change_node=may_change_node):
                await decide()
        except SignerUnavailable:
            # The signer has logged the failure.
            return False
        except (Retryable, RpcError) as error:
            log.warning("decision failed", what=description, reason=str(error))
            return False
        return True
