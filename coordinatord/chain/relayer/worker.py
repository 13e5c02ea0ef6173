"""The relayer of one account, in the process that holds its role."""

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
from coordinatord.chain.relayer.broadcast import Sending, Sent, broadcast
from coordinatord.chain.relayer.fees import offer
from coordinatord.chain.relayer.in_flight import PendingTxs
from coordinatord.chain.relayer.intake import RelayIntake
from coordinatord.chain.relayer.outside_signer import SignerUnavailable
from coordinatord.chain.relayer.receipt_watcher import ReceiptWatcher
from coordinatord.chain.relayer.repair import raise_fees, repair_nonces
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.relayer.sendings import note_sendings
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.signers import AccountSigner
from coordinatord.chain.relayer.tx_size import TxSizeLimits
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import RELAY_QUEUED, Notices
from coordinatord.storage.database.role_connection import RoleConnection, role_of

log = structlog.get_logger(__name__)

# Pause after a node did not answer.
_RETRY_S: Final = 0.25
# Longest wait before the queue is read without a notification, and the interval of its metrics.
_QUEUE_POLL_S: Final = 2.0
# Interval of account reads while the head is unchanged.
_REFRESH_S: Final = 1.0


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
    """Relay from the signer's account whenever this process holds its role, until cancelled."""
    if settings.fee_ceiling.cap is None or settings.fee_ceiling.tip is None:
        log.warning("fees have no ceiling: set RELAY_MAX_FEE_GWEI and RELAY_MAX_TIP_GWEI", chain_id=chain_id)

    async def work(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        term = RoleConnection(connection)
        async with term.transaction() as inside:
            pending = PendingTxs(await transactions_sql.pending(inside, chain_id, signer.address))
            lost = PendingTxs(await transactions_sql.lost(inside, chain_id, signer.address))
        account = RelayerAccount(
            chain_id, signer, pending, lost, room=TxSizeLimits(), ceiling=settings.fee_ceiling, role=role
        )
        await _Worker(term, rpc, account, notices, settings).run()

    await hold_role(database, role_of(chain_id, signer.address), work)


class _Worker:
    """Tasks of one term: they drain the queue, send bytes and follow blocks concurrently, so that no nonce waits for
    another nonce's receipt."""

    def __init__(
        self, term: RoleConnection, rpc: Rpc, account: RelayerAccount, notices: Notices, settings: RelayerSettings
    ) -> None:
        self._term = term
        self._rpc = rpc
        self._account = account
        self._notices = notices
        self._settings = settings
        self._follower = ReceiptWatcher(term, rpc, account)
        self._intake = RelayIntake(term, rpc, account, settings)
        self._caught_up = anyio.Event()
        self._to_sign, self._to_send, self._to_look = Wake(), Wake(), Wake()
        self._read_at = 0.0

    async def run(self) -> None:
        async with (
            self._notices.subscribe(RELAY_QUEUED, lambda _: self._to_sign()),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._follow)
            tasks.start_soon(self._send)
            if not self._settings.replacements_only:
                tasks.start_soon(self._observe)
                tasks.start_soon(self._drain)

    async def _follow(self) -> None:
        """Follow the head."""
        while True:
            looked = await self._try("follow the chain", self._look, leads=True)
            busy = len(self._account.pending) > 0
            pause = self._settings.busy_poll if busy else self._settings.idle_poll
            await self._to_look.wait(pause if looked else max(pause, _RETRY_S))

    async def _look(self) -> None:
        pending_before = len(self._account.pending)
        last_head = self._follower.head
        block = await self._follower.step()
        if block is None:
            return
        if block.hash != last_head or anyio.current_time() >= self._read_at + _REFRESH_S:
            lacked_role = self._account.lacks_role
            await self._account.read(self._rpc, block)
            if lacked_role and not self._account.lacks_role:
                # Settles wait in the queue.
                self._to_sign()
            self._read_at = anyio.current_time()
            self._show_fees()
            # Without the signer, signed transactions are still followed and sent. The next look tries again.
            with suppress(SignerUnavailable):
                if await repair_nonces(self._term, self._rpc, self._account, block):
                    self._to_sign()
        with suppress(SignerUnavailable):
            await raise_fees(self._term, self._account, self._settings.mined_within)
        self._caught_up.set()
        if len(self._account.pending) < pending_before:
            # There is room again.
            self._to_sign()
        self._to_send()

    def _show_fees(self) -> None:
        account = self._account
        if self._settings.replacements_only:
            # The relaying account sets these metrics.
            return
        metrics.relay_fees_above_ceiling.set(account.ceiling.is_below(account.market))
        reserve = self._settings.reserve_gas * offer(account.market, account.ceiling).cap
        metrics.relayer_funds.labels("0x" + account.address.hex(), "reserve").set(reserve)

    async def _drain(self) -> None:
        """Sign queued relays as they arrive."""
        await self._caught_up.wait()
        while True:
            if not await self._try("sign relays", self._drain_once):
                await anyio.sleep(_RETRY_S)
            await self._to_sign.wait(_QUEUE_POLL_S)

    async def _drain_once(self) -> None:
        while await self._intake.round():
            self._to_send()
            self._to_look()

    async def _send(self) -> None:
        """Send stored bytes that are due, in nonce order."""
        await self._caught_up.wait()
        while True:
            due = self._account.pending.due(anyio.current_time())
            if due:
                await self._note(await broadcast(self._rpc, due))
                # Intake waits while signed bytes are unsent.
                self._to_sign()
            following = self._account.pending.next_due()
            pause = 60.0 if following is None else following - anyio.current_time()
            await self._to_send.wait(max(pause, 0.0))

    async def _note(self, sendings: list[Sending]) -> None:
        changed = note_sendings(self._account, sendings, anyio.current_time())
        if any(sending.outcome is Sent.NONCE_USED for sending in sendings):
            # Read the nonce now instead of with the next block.
            self._read_at = 0.0
        self._to_look()
        taken = [sending.tx.id for sending in sendings if sending.outcome is Sent.TAKEN]
        if taken or changed:
            async with self._term.transaction() as connection:
                await transactions_sql.mark_broadcast(connection, taken)
                await transactions_sql.mark_refused(connection, [(tx.id, tx.refusal) for tx in changed])

    async def _observe(self) -> None:
        """Record metrics of the queue."""
        while True:
            metrics.relay_transactions_pending.set(len(self._account.pending))
            async with self._term.transaction() as connection:
                waiting, age = await queue_sql.queue_lengths(connection)
            for priority in outbox_sql.Priority:
                metrics.relay_queue_depth.labels(priority.name.lower()).set(waiting.get(priority, 0))
            metrics.relay_queue_age.set(age)
            await anyio.sleep(_QUEUE_POLL_S)

    async def _try(self, what: str, do: Callable[[], Awaitable[None]], *, leads: bool = False) -> bool:
        """Make one decision with the view of one node. Return False when the node or the signer failed. Errors of
        the database end the term."""
        try:
            async with self._rpc.decision(leads=leads):
                await do()
        except SignerUnavailable:
            # The signer logged it.
            return False
        except (Retryable, RpcError) as error:
            log.warning("decision failed", what=what, reason=str(error))
            return False
        return True
