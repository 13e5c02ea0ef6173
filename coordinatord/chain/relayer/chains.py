"""Chains of ops: an op that the chain refuses only because an older one of its job is not decided, on top of that one.

A post, its claim and its settle need not wait for a block each: the registry only wants to see them in order. A relay
that reverts alone is simulated behind all that is under way of its subject, as far as this account will send that
first: in transactions that it has signed, or in this round, ahead of it. What passes so is signed; in the order of
nonces, and of calls within one transaction, nothing can come before what it builds on.

What does not pass, and all of it where the node simulates no calls in turn, stays queued until the older ones are
decided. Where those are refused or lost after all, what was built on them comes back to the queue (`resolution.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.coalesce import Simulated
from coordinatord.chain.relayer.gas_book import GasBook, enough_gas
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.queue_sql import WaitingRelay
from coordinatord.chain.relayer.results_sql import Undecided, undecided_with
from coordinatord.chain.relayer.simulate import CallData, Ran, simulate_in_turn
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.storage.database.connections import Connection

log = structlog.get_logger(__name__)

OF_A_JOB: Final = frozenset({RelayKind.POST, RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL, RelayKind.CANCEL})
# For an op of which nothing is known: any of a job needs less, whatever gas a token call is given. Some nodes add the
# limits of all calls up and hold the sum against a block.
_MOST_GAS: Final = 2_500_000
# Seconds in which a node that does not simulate calls in turn is not asked again: the first time, and at most.
_FIRST_REST: Final = 15.0
_LONGEST_REST: Final = 600.0
_PATIENCE: Final = 3.0  # seconds: the round holds up ops that pass alone

_NOT_SERVED: Final = (Meaning.REFUSED, Meaning.UNSUPPORTED, Meaning.RATE_LIMITED)


@attrs.frozen(slots=True)
class _Chained:
    """`relay` is None for one that is signed. `tried`: it does not pass alone."""

    id: int
    call: CallData
    relay: WaitingRelay | None = None
    tried: bool = False


class ChainedOps:
    def __init__(self, rpc: Rpc, account: RelayerAccount) -> None:
        self._rpc = rpc
        self._account = account
        self._rest, self._rests_until = _FIRST_REST, 0.0

    async def extend(
        self, connection: Connection, passing: Sequence[Simulated], behind: Sequence[WaitingRelay]
    ) -> list[Simulated]:
        """Those of `behind`, refused alone, that pass on top of what is under way of their job. `passing`: relays of
        this round that pass alone. All are locked by this transaction."""
        if anyio.current_time() < self._rests_until:
            return []
        account = self._account
        under_way = await undecided_with(connection, account.chain_id, account.address, [relay.id for relay in behind])
        first = {one.relay.id: one.relay for one in passing if not one.relay.requeued}
        tried = {relay.id: relay for relay in behind if relay.kind in OF_A_JOB and not relay.requeued}
        jobs = groupby(sorted(under_way, key=attrgetter("subject", "id")), key=attrgetter("subject"))
        chains = [chain for _, job in jobs if (chain := _chain(job, first, tried))]
        if not chains:
            return []
        try:
            with anyio.fail_after(_PATIENCE):
                passing_now = await self._passing(chains)
        except (Retryable, RpcError, TimeoutError) as error:
            log.warning("ops of one job wait for a block each", seconds=self._rest, reason=str(error))
            self._rests_until = anyio.current_time() + self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            return []
        self._rest = _FIRST_REST
        return passing_now

    async def _passing(self, chains: Sequence[Sequence[_Chained]]) -> list[Simulated]:
        """Raises RpcError where the node does not serve it, Retryable where it does not answer."""
        book, room = self._account.gas, self._account.room
        runs = [
            [
                (link.call, book.limit(*link.call) or min(_MOST_GAS, room.block_gas_limit // len(chain)))
                for link in chain
            ]
            for chain in chains
        ]
        answers = await simulate_in_turn(self._rpc, self._account.address, runs)
        errors = [answer for answer in answers if isinstance(answer, RpcError)]
        if len(errors) == len(answers) and errors[0].meaning in _NOT_SERVED:
            raise errors[0]
        told = [(chain, ran) for chain, ran in zip(chains, answers, strict=True) if not isinstance(ran, RpcError)]
        await self._learn(told)
        return [one for chain, ran in told for one in _on_top(chain, ran, book)]

    async def _learn(self, told: Sequence[tuple[Sequence[_Chained], Sequence[Ran]]]) -> None:
        """Shares and limits of ops of new kinds: a limit counts once its op has passed under it."""
        book = self._account.gas
        again: list[list[tuple[CallData, int]]] = []
        for chain, ran in told:
            passed = [(link.call, result.used) for link, result in zip(chain, ran, strict=True) if result.passed]
            for call, used in passed:
                book.simulated(*call, used)
            if any(book.limit(*call) is None for call, _ in passed):
                again.append([(call, book.limit(*call) or enough_gas(call[1], used)) for call, used in passed])
        answers = await simulate_in_turn(self._rpc, self._account.address, again) if again else []
        for run, answer in zip(again, answers, strict=True):
            for (call, limit), result in zip(run, [] if isinstance(answer, RpcError) else answer, strict=False):
                if result.passed and book.limit(*call) is None:
                    book.learn(*call, limit)


def _chain(
    job: Iterable[Undecided], first: Mapping[int, WaitingRelay], tried: Mapping[int, WaitingRelay]
) -> list[_Chained]:
    """What is under way of a job, as far as this account sends it in this order, up to the last that is tried; none
    where nothing is before that."""
    chain: list[_Chained] = []
    for one in job:
        relay = first.get(one.id) or tried.get(one.id)
        if (relay is None and not one.ahead) or (chain and one.target != chain[0].call[0]):
            break  # another account's, or not to be sent now: whatever builds on it waits
        chain.append(_Chained(one.id, (one.target, one.calldata), relay, one.id in tried))
    while chain and not chain[-1].tried:
        chain.pop()
    return [] if not chain or chain[0].tried else chain


def _on_top(chain: Sequence[_Chained], ran: Sequence[Ran], book: GasBook) -> list[Simulated]:
    """Those that were tried and pass. One that does not changes nothing for those behind it: it is not sent before
    them, and its ground is open still."""
    found: list[Simulated] = []
    after = chain[0]
    for link, result in zip(chain, ran, strict=True):
        if link.tried and link.relay is not None:
            gas = book.limit(*link.call)
            if not result.passed or gas is None:
                continue
            on_top = after.relay is not None  # of this round, so that they ride together
            found.append(Simulated.of(link.relay, gas, book, after.id, on_top=on_top))
        # What is ahead anyway must not hide what has to ride along.
        if link.relay is not None or after.relay is None:
            after = link
    return found
