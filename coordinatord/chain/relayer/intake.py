"""One round from the queue to signed transactions: take, simulate, plan, sign and store. Sending is separate.

Relays taken in a round stay locked, so that no other account takes them. A crash leaves them queued.
"""

from collections.abc import Collection, Sequence
from typing import Final

import anyio
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import outbox_sql, queue_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.chains import ChainedOps
from coordinatord.chain.relayer.coalesce import Planned, Rank, Simulated, coalesce, in_flight, rank_of
from coordinatord.chain.relayer.fees import offer
from coordinatord.chain.relayer.queue_sql import Ending, WaitingRelay
from coordinatord.chain.relayer.reserves import Reserves, affordable
from coordinatord.chain.relayer.resolution import inconclusive
from coordinatord.chain.relayer.role import LACKING, WITHOUT_ROLE
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.signing import sign_planned
from coordinatord.chain.relayer.simulate import NoVerdict, WouldPass, WouldRevert, simulate
from coordinatord.chain.rpc.client import Rpc, retryable_of
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

_MAX_TAKEN: Final = 512
# Fills one transaction, so that a request arriving during the round waits for no more than that.
_MAX_BATCH_POSTS: Final = 64


class RelayIntake:
    def __init__(self, term: RoleConnection, rpc: Rpc, account: RelayerAccount, settings: RelayerSettings) -> None:
        self._term = term
        self._rpc = rpc
        self._account = account
        self._settings = settings
        self._chained = ChainedOps(rpc, account)

    async def round(self) -> bool:
        """Take relays from the queue, sign and store them. Return True when any was signed or ended.

        Sign nothing while signed bytes are unsent, so that the queue's depth and timeout also cover a slow node. Raise
        Retryable `chain_unreachable` when the node does not answer, and SignerUnavailable when the signer does not. The
        relays then stay queued.
        """
        room = self._settings.max_in_flight - len(self._account.pending)
        if room <= 0 or self._account.has_unsent:
            return False
        async with self._term.transaction() as connection:
            relays = await self._take(connection, room)
            if not relays:
                return False
            simulated, endings = await self._examine(connection, relays)
            # The node may have answered after the deadline.
            overdue = await queue_sql.drop_overdue(connection, self._settings.queue_timeout_ms)
            simulated = _without(overdue, simulated)
            tx_room = self._account.room.at(anyio.current_time())
            planned = coalesce(simulated, max_ops=self._coalesce_max, room=tx_room)
            plans, unpaid = self._paid(in_flight(planned, room), simulated)
            # Pending transactions may cost less than their reserved maximum.
            if unpaid and not plans and not len(self._account.pending):
                endings += [_dropped(relay, "relayer_funds") for plan in unpaid for relay in plan.relays]
            endings = [ending for ending in _final(relays, endings) if ending.id not in overdue]
            await queue_sql.end(connection, endings)
            signed, unavailable = await sign_planned(connection, self._account, plans) if plans else ([], None)
        for tx in signed:
            self._account.pending.add(tx)
        _count_chained(simulated, plans[: len(signed)])
        kinds = {relay.id: relay.kind for relay in relays}
        for ending in endings:
            metrics.relay_outcomes.labels(kinds[ending.id].value, ending.reason or ending.state).inc()
        for kind in overdue.values():
            metrics.relay_outcomes.labels(kind.value, "relay_queue_timeout").inc()
        if unavailable is not None and not signed:
            # The endings are stored, and the unsigned relays stay queued.
            raise unavailable
        return bool(signed or endings or overdue)

    async def _take(self, connection: Connection, room: int) -> Sequence[WaitingRelay]:
        limit = min(_MAX_TAKEN, room * self._coalesce_max)
        if not self._account.lacks_role:
            return await queue_sql.take(connection, limit, await self._of_batches(connection))
        # Another account may have the role, so the other kinds stay queued.
        return await queue_sql.take(connection, limit, await self._of_batches(connection), WITHOUT_ROLE)

    @property
    def _coalesce_max(self) -> int:
        """Highest number of ops per transaction. Without the role it is one, because `relay(bytes[])` requires the
        role."""
        return 1 if self._account.lacks_role else self._settings.coalesce_max

    def _paid(self, plans: Sequence[Planned], simulated: Sequence[Simulated]) -> tuple[list[Planned], list[Planned]]:
        """Return the plans that the funds can pay for, and the others. Exits that are too expensive together are
        sent one by one."""
        cap, reserves = offer(self._account.market, self._account.ceiling).cap, self._reserves()
        paid, unpaid = affordable(plans, self._account.spendable, cap, reserves)
        together = {relay.id for plan in unpaid if plan.rank is Rank.EXIT for relay in plan.relays}
        if paid or not together:
            return paid, unpaid
        apart = [one for one in simulated if one.relay.id in together]
        alone = coalesce(apart, max_ops=1, room=self._account.room.at(anyio.current_time()))
        paid, poor = affordable(alone, self._account.spendable, cap, reserves)
        return paid, poor + [plan for plan in unpaid if plan.rank is not Rank.EXIT]

    def _reserves(self) -> Reserves:
        settings, account = self._settings, self._account
        return Reserves.of(settings.cancel_reserve_gas, settings.reserve_gas, account.market, account.ceiling)

    async def _of_batches(self, connection: Connection) -> int:
        """Return the number of batch posts to take.

        Take none while the chain falls behind, and no more than this account's share of the next block. Transactions of
        an account are mined in order, so other callers would wait behind the posts.
        """
        waited = anyio.current_time() - self._account.pending.oldest_taken_at()
        if waited >= self._settings.keeping_up:
            return 0
        share = self._account.room.block_gas_limit // await queue_sql.accounts_at_work(
            connection, self._account.chain_id
        )
        under_way = sum(tx.expected or tx.gas for tx in self._account.pending)
        return _MAX_BATCH_POSTS if under_way < share else 0

    async def _examine(
        self, connection: Connection, relays: Sequence[WaitingRelay]
    ) -> tuple[list[Simulated], list[Ending]]:
        try:
            allowed, endings = await self._allowed(relays)
            calls = [(relay.target, relay.calldata) for relay in allowed]
            gas = self._account.gas
            limits = [gas.limit(relay.kind, len(relay.calldata)) for relay in allowed]
            verdicts = await simulate(self._rpc, self._account.address, calls, limits)
            refused = [r.id for r, v in zip(allowed, verdicts, strict=True) if isinstance(v, WouldRevert)]
            waiting = await inconclusive(connection, self._rpc, self._account.chain_id, refused)
        except Retryable as error:
            if error.code is None:
                # No answer: the relays wait up to their timeout.
                raise
            return [], [_dropped(relay, error.code) for relay in relays]
        simulated: list[Simulated] = []
        behind: list[WaitingRelay] = []
        for relay, verdict in zip(allowed, verdicts, strict=True):
            match verdict:
                case WouldPass(limit):
                    gas.was_estimated(relay.kind, len(relay.calldata), limit)
                    simulated.append(Simulated(relay, limit, gas.share(relay.kind, len(relay.calldata), limit)))
                case WouldRevert(name) if name in LACKING:
                    # It stays queued.
                    pass
                case WouldRevert() if relay.id in waiting:
                    # It stays queued unless it passes after the undecided relays.
                    behind.append(relay)
                case WouldRevert(name, raw):
                    endings.append(Ending(relay.id, "refused", name, raw))
                case NoVerdict(code):
                    endings.append(_dropped(relay, code))
        if behind:
            simulated += await self._chained.extend(connection, simulated, behind)
        # Exits wait while fees are above the ceiling.
        return [] if self._account.ceiling.is_below(self._account.market) else simulated, endings

    async def _allowed(self, relays: Sequence[WaitingRelay]) -> tuple[list[WaitingRelay], list[Ending]]:
        """Return the relays that funds and fees allow, and the endings of the others.

        Read the balance in every round, because it changes without our own transactions. A transaction without funds
        would get stuck.
        """
        account = self._account
        try:
            await account.read_balance(self._rpc)
        except RpcError as error:
            raise retryable_of(error, "eth_getBalance") from error
        reserves = self._reserves()
        too_dear = account.ceiling.is_below(account.market)
        allowed: list[WaitingRelay] = []
        endings: list[Ending] = []
        for relay in relays:
            rank = rank_of(relay.kind)
            if not reserves.allows(rank, account.spendable):
                endings.append(_dropped(relay, "relayer_funds"))
            elif too_dear and rank > Rank.EXIT:
                endings.append(_dropped(relay, outbox_sql.FEES_ABOVE_CEILING))
            else:
                allowed.append(relay)
        return allowed, endings


def _without(dropped: Collection[int], simulated: Sequence[Simulated]) -> list[Simulated]:
    """Leave out dropped relays and the relays that build on them. Relays must follow the relays that they build on."""
    gone = set(dropped)
    kept: list[Simulated] = []
    for one in simulated:
        if one.relay.id in gone or one.after in gone:
            gone.add(one.relay.id)
        else:
            kept.append(one)
    return kept


def _count_chained(simulated: Sequence[Simulated], plans: Sequence[Planned]) -> None:
    """Count signed ops that did not wait for an older op to be mined."""
    chained = {one.relay.id for one in simulated if one.after is not None}
    for plan in plans:
        for relay in plan.relays:
            if relay.id in chained:
                metrics.relay_chained.labels(relay.kind.value, "signed").inc()


def _final(relays: Sequence[WaitingRelay], endings: Sequence[Ending]) -> list[Ending]:
    """Leave out endings of requeued relays, unless the chain refused them.

    Their bytes were sent, and callers may know them as mined, so they wait in the queue for missing funds or roles.
    """
    came_back = {relay.id for relay in relays if relay.requeued}
    return [ending for ending in endings if ending.state == "refused" or ending.id not in came_back]


def _dropped(relay: WaitingRelay, code: str) -> Ending:
    return Ending(relay.id, "dropped", code)
