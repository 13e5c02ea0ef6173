"""What the outcomes of a round of sending change: at the transactions, and in what is known of the endpoint.

Bytes are given up when a node's words say that no node will take them, or when it refuses them again and again while
it works for others. Silence proves nothing, however long it lasts.
"""

from collections.abc import Sequence

import structlog

from coordinatord import metrics
from coordinatord.relayer.account import Account
from coordinatord.relayer.broadcast import Sending, Sent
from coordinatord.relayer.pending import PendingTx

log = structlog.get_logger(__name__)


def note_sendings(account: Account, sendings: Sequence[Sending], now: float) -> None:
    outcomes = [sending.outcome for sending in sendings]
    account.taken += outcomes.count(Sent.TAKEN)
    if Sent.NOT_SERVED in outcomes and set(outcomes) <= {Sent.NOT_SERVED, Sent.LATER}:
        account.unserved_rounds += 1
    elif set(outcomes) - {Sent.LATER}:
        account.unserved_rounds = 0
    for sending in sendings:
        if sending.outcome is not Sent.NOT_SERVED:
            sending.tx.kept_back = False
        if sending.tx.latest is sending.version:  # one that was replaced meanwhile is due by itself
            _note(account, sending.tx, sending.outcome, now)


def _note(account: Account, tx: PendingTx, outcome: Sent, now: float) -> None:
    if outcome is Sent.TAKEN:
        tx.was_taken(now)
        return
    tx.was_not_taken(now)
    match outcome:
        case Sent.UNDERPRICED:
            tx.underpriced = True
        case Sent.TOO_MUCH_GAS:
            account.room.too_much_gas(tx.gas, now)
            _give_up(tx, outcome)
        case Sent.OVERSIZED:
            account.room.too_many_bytes(len(tx.latest.raw), now)
            _give_up(tx, outcome)
        case Sent.UNSENDABLE:
            _give_up(tx, outcome)
        case Sent.REJECTED:
            tx.refusals.add(now, account.life)
            if tx.refusals.for_good(now, account.life):
                _give_up(tx, outcome)


def _give_up(tx: PendingTx, outcome: Sent) -> None:
    """A self-transfer has to take its nonce, unless it is one already: then there is nothing smaller to send."""
    if tx.latest.fills or tx.unsendable:
        return
    tx.unsendable = True
    metrics.relay_given_up.labels(outcome.name.lower()).inc()
    log.warning("transaction given up", nonce=tx.nonce, gas=tx.gas, bytes=len(tx.latest.raw), reason=outcome.value)
