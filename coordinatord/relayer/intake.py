"""From the queue to signed transactions: one round takes, examines, plans, signs and stores.

The taken relays stay locked while they are simulated, so that no other account takes them, and a death in between
leaves them queued. Nothing here sends.
"""

from collections.abc import Sequence
from typing import Final

import anyio
import attrs
import structlog

from coordinatord import metrics
from coordinatord.chain.rpc import Rpc, trouble_of
from coordinatord.chain.rpc_errors import RpcError
from coordinatord.relayer.account import Account
from coordinatord.relayer.coalesce import Simulated, coalesce
from coordinatord.relayer.foundations import unfounded
from coordinatord.relayer.funds import affordable, below_reserve, posts_among
from coordinatord.relayer.gas_book import GasBook
from coordinatord.relayer.settings import RelayerSettings
from coordinatord.relayer.signing import sign_planned
from coordinatord.relayer.simulate import NoVerdict, WouldPass, WouldRevert, simulate
from coordinatord.relayer.term import Term
from coordinatord.store import outbox
from coordinatord.store.database import Connection
from coordinatord.store.outbox import Ending, RelayKind, WaitingRelay
from coordinatord.trouble import Retryable

log = structlog.get_logger(__name__)

_TAKEN_AT_ONCE: Final = 512
_OF_BATCHES: Final = 64  # one transaction's worth: a request that comes meanwhile waits for no more


@attrs.frozen(slots=True)
class Round:
    """What one round did. `moved`: it signed or ended something, so that another round is worth while."""

    moved: bool
    signed: bool


class Intake:
    def __init__(self, term: Term, rpc: Rpc, account: Account, settings: RelayerSettings) -> None:
        self._term = term
        self._rpc = rpc
        self._account = account
        self._settings = settings
        self._gas = GasBook()

    async def round(self) -> Round:
        """Raises Retryable `chain_unreachable` when the node does not answer: the relays stay queued."""
        room = self._settings.max_in_flight - len(self._account.pending)
        if room <= 0:
            return Round(moved=False, signed=False)
        async with self._term.transaction() as connection:
            most = min(_TAKEN_AT_ONCE, room * self._settings.coalesce_max)
            relays = await outbox.take(connection, most, self._of_batches())
            if not relays:
                return Round(moved=False, signed=False)
            simulated, endings = await self._examine(connection, relays)
            plans = coalesce(
                simulated, most=self._settings.coalesce_max, block_gas_limit=self._account.block_gas_limit
            )[:room]
            plans, unpaid = affordable(plans, self._account.spendable, self._account.market)
            # With transactions under way the money may come back; with none it does not.
            if unpaid and not plans and not len(self._account.pending):
                endings += [_dropped(relay, "relayer_funds") for plan in unpaid for relay in plan.relays]
            await outbox.end(connection, endings)
            signed = await sign_planned(connection, self._account, plans) if plans else []
        for tx in signed:
            self._account.pending.add(tx)
        for plan in plans:
            metrics.relay_coalesced.observe(len(plan.relays))
        kinds = {relay.id: relay.kind for relay in relays}
        for ending in endings:
            metrics.relay_outcomes.labels(kinds[ending.id].value, ending.reason or ending.state).inc()
        return Round(moved=bool(signed or endings), signed=bool(signed))

    def _of_batches(self) -> int:
        """Nothing while the chain falls behind: whoever waits for an answer waits for all that was signed before, since
        one account's transactions are mined in turn."""
        waited = anyio.current_time() - self._account.pending.oldest_taken_at()
        return _OF_BATCHES if waited < self._settings.keeping_up else 0

    async def _examine(
        self, connection: Connection, relays: Sequence[WaitingRelay]
    ) -> tuple[list[Simulated], list[Ending]]:
        try:
            unfunded = await self._unfunded(relays)
            funded = list(relays) if not unfunded else [r for r in relays if r.kind is not RelayKind.POST]
            calls = [(relay.target, relay.calldata) for relay in funded]
            verdicts = await simulate(self._rpc, self._account.address, calls, self._gas)
            refused = [r.id for r, v in zip(funded, verdicts, strict=True) if isinstance(v, WouldRevert)]
            waiting = await unfounded(connection, self._rpc, self._account.chain_id, refused)
        except Retryable as trouble:
            if trouble.code is None:
                raise  # no answer at all: the relays wait, up to their timeout
            return [], [_dropped(relay, trouble.code) for relay in relays]
        endings = [_dropped(relay, "relayer_funds") for relay in unfunded]
        simulated: list[Simulated] = []
        for relay, verdict in zip(funded, verdicts, strict=True):
            match verdict:
                case WouldPass(gas):
                    simulated.append(Simulated(relay, gas))
                case WouldRevert() if relay.id in waiting:
                    pass  # it stays queued
                case WouldRevert(name, raw):
                    endings.append(Ending(relay.id, "refused", name, raw))
                case NoVerdict(code):
                    endings.append(_dropped(relay, code))
        return simulated, endings

    async def _unfunded(self, relays: Sequence[WaitingRelay]) -> list[WaitingRelay]:
        """The posts among them, when funds are below the reserve. Funds come and go without a block of ours, and what
        is signed without them stays stuck: hence a fresh look in every round."""
        account = self._account
        try:
            await account.read_balance(self._rpc)
        except RpcError as error:
            raise trouble_of(error, "eth_getBalance") from error
        poor = below_reserve(account.spendable, account.market, self._settings.reserve_gas)
        return posts_among(relays) if poor else []


def _dropped(relay: WaitingRelay, code: str) -> Ending:
    return Ending(relay.id, "dropped", code)
