"""Effects of a round of sending on the transactions.

Known words of a refusal give bytes up at once. Every other refusal leaves them to their turn (repair.py).
"""

from collections.abc import Sequence

import structlog

from coordinatord.base import metrics
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.broadcast import NO_VERDICT, Sending, Sent
from coordinatord.chain.relayer.in_flight import PendingTx

log = structlog.get_logger(__name__)


def note_sendings(account: RelayerAccount, sendings: Sequence[Sending], now: float) -> list[PendingTx]:
    """Apply a round's outcomes. Returns the transactions whose `refusal` has changed."""
    changed = [sending.tx for sending in sendings if _note_refusal(sending)]
    for sending in sendings:
        if sending.tx.latest is sending.version:  # a newer version is due by itself
            _note(account, sending.tx, sending.outcome, now)
    return changed


def _note_refusal(sending: Sending) -> bool:
    """True when the transaction's refusal has changed."""
    tx, before = sending.tx, sending.tx.refusal
    if sending.refusal is None:
        # A self-transfer that a node accepted says nothing of the bytes that carry relays.
        tx.refusal = before if tx.unsent and sending.version.fills else None
        tx.unsent = False
    elif tx.unsent:
        tx.refusal = sending.refusal
    return tx.refusal != before


def _note(account: RelayerAccount, tx: PendingTx, outcome: Sent, now: float) -> None:
    if outcome not in NO_VERDICT:
        tx.was_answered(now, account.head, accepted=outcome is Sent.TAKEN)
    if outcome is Sent.TAKEN:
        tx.was_taken(now)
        return
    tx.was_not_taken(now)
    match outcome:
        case Sent.UNDERPRICED:
            tx.underpriced = True
        case Sent.TOO_MUCH_GAS:
            account.room.too_much_gas(tx.gas, now)
            give_up(tx, outcome.name.lower())
        case Sent.OVERSIZED:
            account.room.too_many_bytes(len(tx.latest.raw), now)
            give_up(tx, outcome.name.lower())
        case Sent.UNSENDABLE:
            give_up(tx, outcome.name.lower())


def give_up(tx: PendingTx, reason: str) -> None:
    """Have a self-transfer take the nonce, unless it is one already: then there is nothing smaller to send."""
    if tx.latest.fills or tx.unsendable:
        return
    tx.unsendable = True
    metrics.relay_given_up.labels(reason).inc()
    log.warning("transaction given up", nonce=tx.nonce, gas=tx.gas, bytes=len(tx.latest.raw), reason=reason)
