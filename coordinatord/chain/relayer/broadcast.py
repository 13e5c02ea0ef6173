"""Send stored bytes in JSON-RPC batches, classify each answer by its message, and apply the outcomes.

No answer makes the relayer pick another nonce for a transaction, because the nonce is stored with the bytes. After a
refusal that no retry can resolve, the transaction is abandoned at once: a self-transfer replaces it. After any other
refusal, the bytes are sent again, until `repair.py` raises the fee or abandons the transaction.
"""

import enum
from collections.abc import Sequence
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.in_flight import ENDPOINT_REFUSED, RATE_LIMITED, PendingTx, Version
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, RpcCall, retryable_of
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind

log = structlog.get_logger(__name__)

# The other nodes may take this long after the first node's answer.
_OTHER_NODES_TIMEOUT_S: Final = 1.0


class SendResult(enum.Enum):
    """Answer of a node to one broadcast transaction."""

    ACCEPTED = "the node has the bytes"
    NONCE_USED = "the nonce is used: the transaction is mined already, or another transaction used the nonce"
    UNDERPRICED = "the transaction must offer a higher fee"
    TOO_MUCH_GAS = "no node will ever accept these bytes: too much gas, or too high a cost"
    OVERSIZED = "no node will ever accept these bytes: too many bytes"
    UNSENDABLE = "no node will ever accept these bytes, for another reason"
    REJECTED = "refused with an unknown message"
    NOT_SERVED = "the endpoint does not accept transactions: it did not pass on the bytes"
    RATE_LIMITED = "the node rate-limits requests; retry the same bytes later"
    NOT_NOW = "refused for the moment, not because of the bytes; retry the same bytes later"
    LATER = "no answer: a node may have the bytes; retry the same bytes later"


_RESULT_OF_ERROR: Final = {
    RpcErrorKind.ALREADY_KNOWN: SendResult.ACCEPTED,
    RpcErrorKind.NONCE_TOO_LOW: SendResult.NONCE_USED,
    RpcErrorKind.UNDERPRICED: SendResult.UNDERPRICED,
    RpcErrorKind.TOO_MUCH_GAS: SendResult.TOO_MUCH_GAS,
    RpcErrorKind.OVERSIZED: SendResult.OVERSIZED,
    RpcErrorKind.TOO_LITTLE_GAS: SendResult.UNSENDABLE,
    RpcErrorKind.REFUSED: SendResult.NOT_SERVED,
    RpcErrorKind.NONCE_TOO_HIGH: SendResult.NOT_NOW,
    RpcErrorKind.NO_FUNDS: SendResult.NOT_NOW,
    RpcErrorKind.POOL_FULL: SendResult.NOT_NOW,
    RpcErrorKind.RATE_LIMITED: SendResult.RATE_LIMITED,
}
# Outcomes after which the node may have the bytes.
_MAY_BE_IN_POOL: Final = (SendResult.ACCEPTED, SendResult.NONCE_USED, SendResult.LATER)
# Codes for callers if no node ever accepts the bytes. All other refusals are `rpc_internal`.
_REFUSAL_CODES: Final = {SendResult.NOT_SERVED: ENDPOINT_REFUSED, SendResult.RATE_LIMITED: RATE_LIMITED}
# Outcomes that are no verdict on the bytes, least informative first.
_NO_VERDICT_RESULTS: Final = (SendResult.LATER, SendResult.RATE_LIMITED, SendResult.NOT_NOW, SendResult.NOT_SERVED)


@attrs.frozen(slots=True)
class SentVersion:
    """One version of a transaction, with each node's answer."""

    tx: PendingTx
    version: Version
    answers: tuple[SendResult, ...]

    @property
    def outcome(self) -> SendResult:
        """Return ACCEPTED if any node accepted the bytes, otherwise the first verdict on the bytes. Without a verdict,
        return the least informative answer."""
        if SendResult.ACCEPTED in self.answers:
            return SendResult.ACCEPTED
        verdicts = [answer for answer in self.answers if answer not in _NO_VERDICT_RESULTS]
        return verdicts[0] if verdicts else next(answer for answer in _NO_VERDICT_RESULTS if answer in self.answers)

    @property
    def refusal(self) -> str | None:
        """Error code if no node has the bytes, or None when a node may have them."""
        if any(answer in _MAY_BE_IN_POOL for answer in self.answers):
            return None
        return _REFUSAL_CODES.get(self.outcome, "rpc_internal")


async def broadcast(rpc: Rpc, txs: Sequence[PendingTx]) -> list[SentVersion]:
    """Send the latest version of each transaction to all nodes, in nonce order. All nodes receive the same bytes."""
    sendings: list[SentVersion] = []
    for start in range(0, len(txs), CALLS_PER_REQUEST):
        sendings += await _send_to_all(rpc, [(tx, tx.latest) for tx in txs[start : start + CALLS_PER_REQUEST]])
    return sendings


async def _send_to_all(rpc: Rpc, txs: Sequence[tuple[PendingTx, Version]]) -> list[SentVersion]:
    others = rpc.others
    answers = [[SendResult.LATER] * len(txs) for _ in (rpc, *others)]

    async def send_to(place: int, node: Rpc) -> None:
        answers[place] = await _send_batch(node, txs)

    async with anyio.create_task_group() as tasks:
        for place, other in enumerate(others, 1):
            tasks.start_soon(send_to, place, other)
        await send_to(0, rpc)
        # Slower nodes count as unanswered.
        tasks.cancel_scope.deadline = anyio.current_time() + _OTHER_NODES_TIMEOUT_S
    return [SentVersion(tx, version, each) for (tx, version), each in zip(txs, zip(*answers, strict=True), strict=True)]


async def _send_batch(rpc: Rpc, txs: Sequence[tuple[PendingTx, Version]]) -> list[SendResult]:
    calls = [RpcCall("eth_sendRawTransaction", ("0x" + version.raw.hex(),)) for _, version in txs]
    try:
        answers = await rpc.batch(calls)
    except (Retryable, RpcError) as error:
        log.warning("broadcast not answered", transactions=len(txs), reason=str(error))
        code = retryable_of(error, "a broadcast").code if isinstance(error, RpcError) else error.code
        # After any other failure, a node may have the bytes.
        outcome = {code: sent for sent, code in _REFUSAL_CODES.items()}.get(code or "", SendResult.LATER)
        return [outcome] * len(txs)
    return [_classify_answer(tx, answer) for (tx, _), answer in zip(txs, answers, strict=True)]


def _classify_answer(tx: PendingTx, answer: object) -> SendResult:
    if not isinstance(answer, RpcError):
        return SendResult.ACCEPTED
    outcome = _RESULT_OF_ERROR.get(answer.kind, SendResult.REJECTED)
    if outcome is SendResult.NONCE_USED and tx.is_accepted:
        # Usually the transaction was mined just before a rebroadcast. The next read of the head shows the result.
        log.info("broadcast again after its nonce was used", nonce=tx.nonce)
    elif outcome is not SendResult.ACCEPTED:
        log.warning("broadcast refused", nonce=tx.nonce, kind=answer.kind.value, reason=str(answer))
    return outcome


def apply_sent_versions(account: RelayerAccount, sendings: Sequence[SentVersion], now: float) -> None:
    """Update the pending transactions and the size limits with the outcomes of a broadcast."""
    for sending in sendings:
        tx = sending.tx
        if sending.refusal is not None:
            tx.refusal = sending.refusal if tx.unsent else tx.refusal
        # An accepted self-transfer says nothing about the bytes that carry relays.
        elif not (tx.unsent and sending.version.fills):
            tx.refusal = None
        tx.unsent = tx.unsent and sending.refusal is not None
        # If a newer version exists by now, this outcome does not apply to it: the newer version is broadcast
        # separately.
        if tx.latest is sending.version:
            _apply_outcome(account, tx, sending.outcome, now)


def _apply_outcome(account: RelayerAccount, tx: PendingTx, outcome: SendResult, now: float) -> None:
    if outcome not in _NO_VERDICT_RESULTS:
        tx.record_verdict(now, account.head, accepted=outcome is SendResult.ACCEPTED)
    if outcome is SendResult.ACCEPTED:
        tx.record_accepted(now)
        return
    tx.record_not_accepted(now)
    match outcome:
        case SendResult.UNDERPRICED:
            tx.underpriced = True
        case SendResult.TOO_MUCH_GAS:
            account.room.lower_gas_limit(tx.gas, now)
            abandon_tx(tx, outcome.name.lower())
        case SendResult.OVERSIZED:
            account.room.lower_byte_limit(len(tx.latest.raw), now)
            abandon_tx(tx, outcome.name.lower())
        case SendResult.UNSENDABLE:
            abandon_tx(tx, outcome.name.lower())


def abandon_tx(tx: PendingTx, reason: str) -> None:
    """Mark the transaction as unsendable, so that a self-transfer replaces it. Do nothing if the latest version is a
    self-transfer already."""
    if tx.latest.fills or tx.unsendable:
        return
    tx.unsendable = True
    metrics.relay_replacements.labels(reason).inc()
    log.warning("transaction given up", nonce=tx.nonce, gas=tx.gas, bytes=len(tx.latest.raw), reason=reason)
