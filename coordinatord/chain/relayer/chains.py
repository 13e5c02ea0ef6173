"""Chains of ops of one job. The registry refuses a later op of a chain until the older ops are mined.

If a relay reverts when it is simulated by itself, it is simulated again after the undecided ops of the same job that
this account sends before it. If that simulation succeeds, the relay is signed. The order of nonces, and of calls within
a transaction, keeps the relay behind the ops that it builds on. Otherwise the relay stays queued until the older ops
are decided. On a node without `eth_simulateV1`, all such relays stay queued.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import attrgetter
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.coalesce import SimulatedRelay
from coordinatord.chain.relayer.outbox_sql import RelayKind, StoredRelay
from coordinatord.chain.relayer.results_sql import find_undecided_of_same_subjects
from coordinatord.chain.relayer.simulate import ContractCall, simulate_sequences
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.storage.database.connections import Connection

log = structlog.get_logger(__name__)

JOB_KINDS: Final = frozenset({RelayKind.POST, RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL, RelayKind.CANCEL})
# Pause after a failed simulation, for example on a node without eth_simulateV1.
_FAILURE_PAUSE_S: Final = 60.0
# Short, because the other ops of the round wait for this simulation.
_SIMULATION_TIMEOUT_S: Final = 3.0

_SIMULATION_UNAVAILABLE_ERRORS: Final = (RpcErrorKind.REFUSED, RpcErrorKind.UNSUPPORTED, RpcErrorKind.RATE_LIMITED)


@attrs.frozen(slots=True)
class _ChainedOp:
    """Op of a chain. `gas_limit` is its gas limit. An op that `reverts_alone` is simulated after the ops before it."""

    relay: StoredRelay
    gas_limit: int
    reverts_alone: bool

    @property
    def call(self) -> ContractCall:
        return self.relay.target, self.relay.calldata


class ChainedOpSimulator:
    """Simulates ops after the undecided ops that they build on."""

    def __init__(self, rpc: Rpc, account: RelayerAccount) -> None:
        self._rpc = rpc
        self._account = account
        self._paused_until = 0.0

    async def find_passing(
        self, connection: Connection, passing: Sequence[SimulatedRelay], reverting: Sequence[StoredRelay]
    ) -> list[SimulatedRelay]:
        """Simulate each relay of `reverting`, which reverts alone, after the undecided ops of its job. Return the
        relays that pass. `passing` are the relays of this round that pass alone."""
        if anyio.current_time() < self._paused_until:
            return []
        under_way = await find_undecided_of_same_subjects(connection, [relay.id for relay in reverting])
        passing_ids = {one.relay.id for one in passing if not one.relay.requeue_count}
        reverts_alone = {relay.id for relay in reverting if relay.kind in JOB_KINDS and not relay.requeue_count}
        jobs = groupby(sorted(under_way, key=attrgetter("subject", "id")), key=attrgetter("subject"))
        chains = [chain for _, job in jobs if (chain := self._find_chain(job, passing_ids, reverts_alone))]
        if not chains:
            return []
        try:
            with anyio.fail_after(_SIMULATION_TIMEOUT_S):
                answers = await simulate_sequences(
                    self._rpc,
                    self._account.address,
                    [[(link.call, link.gas_limit) for link in chain] for chain in chains],
                )
            errors = [answer for answer in answers if isinstance(answer, RpcError)]
            if len(errors) == len(answers) and errors[0].kind in _SIMULATION_UNAVAILABLE_ERRORS:
                raise errors[0]
        except (Retryable, RpcError, TimeoutError) as error:
            log.warning("chained ops not simulated", retry_in_s=_FAILURE_PAUSE_S, reason=str(error))
            self._paused_until = anyio.current_time() + _FAILURE_PAUSE_S
            return []
        return [
            op
            for chain, passed in zip(chains, answers, strict=True)
            if not isinstance(passed, RpcError)
            for op in self._select_passing(chain, passed)
        ]

    def _find_chain(
        self, job: Iterable[StoredRelay], passing_ids: AbstractSet[int], reverts_alone: AbstractSet[int]
    ) -> list[_ChainedOp]:
        """Return a job's first undecided ops, up to the last op that reverts when it is simulated without the ops
        before it. This account must send all of them, to the same registry.

        Return an empty list if there is no such op, or if it is the first: no earlier op can then make it pass.
        """
        chain: list[_ChainedOp] = []
        for op in job:
            limit = self._account.planned_gas.limit(op.kind, len(op.calldata))
            is_ours = op.id in passing_ids or op.id in reverts_alone or self._account.precedes_new_txs(op.tx_id)
            if not is_ours or limit is None or (chain and op.target != chain[0].relay.target):
                # Later ops wait behind an op that another account sends, that is not sent now, or that goes to another
                # registry.
                break
            chain.append(_ChainedOp(op, limit, op.id in reverts_alone))
        while chain and not chain[-1].reverts_alone:
            chain.pop()
        return [] if not chain or chain[0].reverts_alone else chain

    def _select_passing(self, chain: Sequence[_ChainedOp], passed: Sequence[bool]) -> list[SimulatedRelay]:
        """Return the ops that revert alone but pass in this chain. An op that does not pass is not sent, so it does not
        affect the ops after it."""
        found: list[SimulatedRelay] = []
        after = chain[0].relay
        for link, passes in zip(chain, passed, strict=True):
            relay = link.relay
            if link.reverts_alone and not passes:
                continue
            if link.reverts_alone:
                share = self._account.planned_gas.share(relay.kind, len(relay.calldata), link.gas_limit)
                found.append(SimulatedRelay(relay, link.gas_limit, share, after.id))
            # The next op builds on the last unsigned op, which must share its transaction. Signed ops are sent earlier.
            if relay.tx_id is None or after.tx_id is not None:
                after = relay
        return found
