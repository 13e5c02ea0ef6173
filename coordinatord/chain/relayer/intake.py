"""Turn queued relays into signed transactions, in rounds: take, simulate, plan, sign and store. Sending is separate.

Relays of a round stay locked in the database, so that no other account takes them. A crash leaves them queued.
"""

from collections.abc import Collection, Sequence
from typing import Final

import anyio
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import outbox_sql, queue_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.chains import ChainedOpSimulator
from coordinatord.chain.relayer.coalesce import (
    PlannedTx,
    Rank,
    SimulatedRelay,
    coalesce,
    limit_in_flight,
    rank_of,
    split_affordable,
)
from coordinatord.chain.relayer.fees import initial_fee
from coordinatord.chain.relayer.outbox_sql import RelayKind, StoredRelay
from coordinatord.chain.relayer.queue_sql import RelayEnding
from coordinatord.chain.relayer.resolution import find_inconclusive_refusals
from coordinatord.chain.relayer.role import KINDS_WITHOUT_ROLE, LACKING_ROLE_ERRORS
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.signing import sign_planned
from coordinatord.chain.relayer.simulate import NoVerdict, WouldPass, WouldRevert, simulate
from coordinatord.chain.rpc.client import Rpc, to_retryable
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

_MAX_RELAYS_PER_ROUND: Final = 512
# This many posts fill one transaction, so a request that arrives during the round waits for at most one transaction of
# posts.
_MAX_BATCH_POSTS: Final = 64


class RelayIntake:
    def __init__(
        self, role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, settings: RelayerSettings
    ) -> None:
        self._role_connection = role_connection
        self._rpc = rpc
        self._account = account
        self._settings = settings
        self._chained = ChainedOpSimulator(rpc, account)

    async def run_round(self) -> bool:
        """Take relays from the queue, sign and store them. Return True when any relay was signed or ended.

        Sign nothing while signed bytes are unsent, so that the queue's depth and timeout also cover a slow node. Raise
        Retryable when the node or the signer does not answer. The relays then stay queued.
        """
        free_slots = self._settings.max_in_flight - len(self._account.pending_txs)
        if free_slots <= 0 or self._account.has_unsent:
            return False
        async with self._role_connection.transaction() as connection:
            relays = await self._take_relays(connection, free_slots)
            if not relays:
                return False
            simulated, endings = await self._simulate_relays(connection, relays)
            # The simulation may have lasted beyond the queue timeout of a relay.
            overdue = await queue_sql.drop_overdue_relays(connection, self._settings.queue_timeout_ms)
            simulated = _remove_dropped(overdue, simulated)
            limits = self._account.tx_limits.limits_at(anyio.current_time())
            planned = coalesce(simulated, max_ops=self._max_ops_per_tx, tx_limits=limits)
            plans, unpaid = self._split_affordable(limit_in_flight(planned, free_slots), simulated)
            # Drop unpaid relays only when nothing is pending: pending transactions may cost less than their reserved
            # maximum, which frees funds.
            if unpaid and not plans and not len(self._account.pending_txs):
                endings += [_dropped_ending(relay, "relayer_funds") for plan in unpaid for relay in plan.relays]
            # Do not drop requeued relays: they were sent before, and their callers may have been told that they were
            # mined. They wait in the queue for missing funds or roles instead.
            requeued_ids = {relay.id for relay in relays if relay.requeue_count}
            endings = [
                ending
                for ending in endings
                if ending.id not in overdue and (ending.state == "refused" or ending.id not in requeued_ids)
            ]
            await queue_sql.end_queued_relays(connection, endings)
            signed, unavailable = await sign_planned(connection, self._account, plans) if plans else ([], None)
        for tx in signed:
            self._account.pending_txs.add(tx)
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

    async def _take_relays(self, connection: Connection, free_slots: int) -> Sequence[StoredRelay]:
        limit = min(_MAX_RELAYS_PER_ROUND, free_slots * self._max_ops_per_tx)
        # Without the role, leave the other kinds in the queue. Another account may have the role.
        kinds = KINDS_WITHOUT_ROLE if self._account.lacks_role else tuple(RelayKind)
        return await queue_sql.take_relays(connection, limit, await self._max_batch_posts(connection), kinds)

    @property
    def _max_ops_per_tx(self) -> int:
        """Highest number of ops per transaction. Without the role it is one, because `relay(bytes[])` requires the
        role."""
        return 1 if self._account.lacks_role else self._settings.coalesce_max

    def _split_affordable(
        self, plans: Sequence[PlannedTx], simulated: Sequence[SimulatedRelay]
    ) -> tuple[list[PlannedTx], list[PlannedTx]]:
        """Return the plans that the funds can pay for, and the others. Exits that are too expensive together are
        sent one by one."""
        cap = initial_fee(self._account.fee_market, self._account.fee_ceiling).max_fee
        reserves = self._settings.reserves(cap)
        paid, unpaid = split_affordable(plans, self._account.spendable_wei, cap, reserves)
        exit_ids = {relay.id for plan in unpaid if plan.rank is Rank.EXIT for relay in plan.relays}
        if paid or not exit_ids:
            return paid, unpaid
        exits = [candidate for candidate in simulated if candidate.relay.id in exit_ids]
        single_exits = coalesce(exits, max_ops=1, tx_limits=self._account.tx_limits.limits_at(anyio.current_time()))
        paid, unpaid_exits = split_affordable(single_exits, self._account.spendable_wei, cap, reserves)
        return paid, unpaid_exits + [plan for plan in unpaid if plan.rank is not Rank.EXIT]

    async def _max_batch_posts(self, connection: Connection) -> int:
        """Return the number of batch posts to take: none while pending transactions already fill this account's share
        of the next block, because other callers wait behind batch posts."""
        share = self._account.tx_limits.block_gas_limit // await queue_sql.count_active_accounts(
            connection, self._account.chain_id
        )
        under_way = sum(tx.expected_gas or tx.gas_limit for tx in self._account.pending_txs)
        return _MAX_BATCH_POSTS if under_way < share else 0

    async def _simulate_relays(
        self, connection: Connection, relays: Sequence[StoredRelay]
    ) -> tuple[list[SimulatedRelay], list[RelayEnding]]:
        try:
            allowed, endings = await self._split_allowed(relays)
            calls = [(relay.target, relay.calldata) for relay in allowed]
            gas = self._account.planned_gas
            limits = [gas.limit(relay.kind, len(relay.calldata)) for relay in allowed]
            verdicts = await simulate(self._rpc, self._account.address, calls, limits)
            refused = [r.id for r, v in zip(allowed, verdicts, strict=True) if isinstance(v, WouldRevert)]
            inconclusive = await find_inconclusive_refusals(connection, self._rpc, self._account.chain_id, refused)
        except Retryable as error:
            if error.code is None:
                # No answer: the relays wait up to their timeout.
                raise
            return [], [_dropped_ending(relay, error.code) for relay in relays]
        simulated: list[SimulatedRelay] = []
        reverting: list[StoredRelay] = []
        for relay, verdict in zip(allowed, verdicts, strict=True):
            match verdict:
                case WouldPass(limit):
                    gas.learn_estimate(relay.kind, len(relay.calldata), limit)
                    simulated.append(SimulatedRelay(relay, limit, gas.share(relay.kind, len(relay.calldata), limit)))
                case WouldRevert(name) if name in LACKING_ROLE_ERRORS:
                    # The relay stays queued.
                    pass
                case WouldRevert() if relay.id in inconclusive:
                    # The relay stays queued, unless its simulation after the undecided relays succeeds.
                    reverting.append(relay)
                case WouldRevert(name, raw):
                    endings.append(RelayEnding(relay.id, "refused", name, raw))
                case NoVerdict(code):
                    endings.append(_dropped_ending(relay, code))
        if reverting:
            simulated += await self._chained.find_passing(connection, simulated, reverting)
        # While fees are above the ceiling, nothing new is signed, and exits stay queued.
        return [] if self._account.fee_ceiling.is_below(self._account.fee_market) else simulated, endings

    async def _split_allowed(self, relays: Sequence[StoredRelay]) -> tuple[list[StoredRelay], list[RelayEnding]]:
        """Return the relays that funds and fees allow, and the endings of the others. Read the balance in every round,
        because a transaction without funds would get stuck."""
        account = self._account
        try:
            await account.read_balance(self._rpc)
        except RpcError as error:
            raise to_retryable(error, "eth_getBalance") from error
        reserves = self._settings.reserves(initial_fee(account.fee_market, account.fee_ceiling).max_fee)
        above_ceiling = account.fee_ceiling.is_below(account.fee_market)
        allowed: list[StoredRelay] = []
        endings: list[RelayEnding] = []
        for relay in relays:
            rank = rank_of(relay.kind)
            if rank > Rank.EXIT and account.spendable_wei < reserves[rank]:
                endings.append(_dropped_ending(relay, "relayer_funds"))
            elif above_ceiling and rank > Rank.EXIT:
                endings.append(_dropped_ending(relay, outbox_sql.FEES_ABOVE_CEILING))
            else:
                allowed.append(relay)
        return allowed, endings


def _remove_dropped(dropped: Collection[int], simulated: Sequence[SimulatedRelay]) -> list[SimulatedRelay]:
    """Leave out dropped relays and the relays that build on them. In `simulated`, each relay must come after the relay
    that it builds on."""
    dropped_ids = set(dropped)
    kept: list[SimulatedRelay] = []
    for candidate in simulated:
        if candidate.relay.id in dropped_ids or candidate.builds_on in dropped_ids:
            dropped_ids.add(candidate.relay.id)
        else:
            kept.append(candidate)
    return kept


def _count_chained(simulated: Sequence[SimulatedRelay], plans: Sequence[PlannedTx]) -> None:
    """Count signed ops that did not wait for an older op to be mined."""
    chained = {candidate.relay.id for candidate in simulated if candidate.builds_on is not None}
    for plan in plans:
        for relay in plan.relays:
            if relay.id in chained:
                metrics.relay_chained.labels(relay.kind.value, "signed").inc()


def _dropped_ending(relay: StoredRelay, code: str) -> RelayEnding:
    return RelayEnding(relay.id, "dropped", code)
