"""Apply the outcomes of a broadcast to its transactions.

A refusal with known meaning gives a transaction up at once. After any other refusal, the transaction waits for its turn
(repair.py).
"""

from collections.abc import Sequence

import structlog

from coordinatord.base import metrics
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.broadcast import NO_VERDICT, Sending, Sent
from coordinatord.chain.relayer.in_flight import PendingTx

log = structlog.get_logger(__name__)


def note_sendings(account: RelayerAccount, sendings: Sequence[Sending], now: float) -> list[PendingTx]:
    """Apply the outcomes of a broadcast. Return the transactions with a changed `refusal`."""
    changed = [sending.tx for sending in sendings if _note_refusal(sending)]
    for sending in sendings:
        # A newer version is due separately.
        if sending.tx.latest is sending.version:
            _note(account, sending.tx, sending.outcome, now)
    return changed


def _note_refusal(sending: Sending) -> bool:
    """Return True when the transaction's refusal has changed."""
    tx, before = sending.tx, sending.tx.refusal
    if sending.refusal is None:
        # An accepted self-transfer says nothing about the bytes that carry relays.
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
    """Let a self-transfer take the nonce, unless the transaction is one already."""
    if tx.latest.fills or tx.unsendable:
        return
    tx.unsendable = True
    metrics.relay_replacements.labels(reason).inc()
    log.warning("transaction given up", nonce=tx.nonce, gas=tx.gas, bytes=len(tx.latest.raw), reason=reason)
