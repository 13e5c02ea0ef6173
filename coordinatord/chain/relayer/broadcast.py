"""Send stored, signed transactions in JSON-RPC batches, classify each answer by its message, and apply the outcomes.

Whatever the nodes answer, the relayer never picks another nonce for a transaction, because the nonce is stored with the
signed bytes.
After a refusal that no retry can resolve, the transaction is abandoned at once: a self-transfer replaces it. After any
other refusal, the bytes are sent again, until `repair.py` raises the fee or abandons the transaction.
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
from coordinatord.chain.relayer.in_flight import ENDPOINT_REFUSED, RATE_LIMITED, PendingTx, SignedVersion
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, RpcCall, to_retryable
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
    REFUSED_FOR_NOW = "refused for the moment, not because of the bytes; retry the same bytes later"
    NO_ANSWER = "no answer: a node may have the bytes; retry the same bytes later"


_RESULT_OF_ERROR: Final = {
    RpcErrorKind.ALREADY_KNOWN: SendResult.ACCEPTED,
    RpcErrorKind.NONCE_TOO_LOW: SendResult.NONCE_USED,
    RpcErrorKind.UNDERPRICED: SendResult.UNDERPRICED,
    RpcErrorKind.TOO_MUCH_GAS: SendResult.TOO_MUCH_GAS,
    RpcErrorKind.OVERSIZED: SendResult.OVERSIZED,
    RpcErrorKind.TOO_LITTLE_GAS: SendResult.UNSENDABLE,
    RpcErrorKind.REFUSED: SendResult.NOT_SERVED,
    RpcErrorKind.NONCE_TOO_HIGH: SendResult.REFUSED_FOR_NOW,
    RpcErrorKind.NO_FUNDS: SendResult.REFUSED_FOR_NOW,
    RpcErrorKind.POOL_FULL: SendResult.REFUSED_FOR_NOW,
    RpcErrorKind.RATE_LIMITED: SendResult.RATE_LIMITED,
}
# Outcomes after which the node may have the bytes.
_MAYBE_IN_POOL_RESULTS: Final = (SendResult.ACCEPTED, SendResult.NONCE_USED, SendResult.NO_ANSWER)
# Codes for callers if no node ever accepts the bytes. All other refusals are `rpc_internal`.
_REFUSAL_CODES: Final = {SendResult.NOT_SERVED: ENDPOINT_REFUSED, SendResult.RATE_LIMITED: RATE_LIMITED}
# Outcomes that do not say if the bytes are acceptable, least informative first.
_NO_VERDICT_RESULTS: Final = (
    SendResult.NO_ANSWER,
    SendResult.RATE_LIMITED,
    SendResult.REFUSED_FOR_NOW,
    SendResult.NOT_SERVED,
)


@attrs.frozen(slots=True)
class SentVersion:
    """One version of a transaction, with each node's answer."""

    tx: PendingTx
    version: SignedVersion
    results: tuple[SendResult, ...]

    @property
    def outcome(self) -> SendResult:
        """Return ACCEPTED if any node accepted the bytes, otherwise the first answer that is not one of
        `_NO_VERDICT_RESULTS`. If all are, return the least informative answer."""
        if SendResult.ACCEPTED in self.results:
            return SendResult.ACCEPTED
        verdicts = [answer for answer in self.results if answer not in _NO_VERDICT_RESULTS]
        return verdicts[0] if verdicts else next(answer for answer in _NO_VERDICT_RESULTS if answer in self.results)

    @property
    def refusal(self) -> str | None:
        """Error code if no node has the bytes, or None when a node may have them."""
        if any(answer in _MAYBE_IN_POOL_RESULTS for answer in self.results):
            return None
        return _REFUSAL_CODES.get(self.outcome, "rpc_internal")


async def broadcast(rpc: Rpc, txs: Sequence[PendingTx]) -> list[SentVersion]:
    """Send the latest version of each transaction to all nodes, in nonce order. All nodes receive the same bytes."""
    sent_versions: list[SentVersion] = []
    for start in range(0, len(txs), CALLS_PER_REQUEST):
        sent_versions += await _send_to_all(rpc, [(tx, tx.latest) for tx in txs[start : start + CALLS_PER_REQUEST]])
    return sent_versions


async def _send_to_all(rpc: Rpc, txs: Sequence[tuple[PendingTx, SignedVersion]]) -> list[SentVersion]:
    others = rpc.other_nodes
    answers = [[SendResult.NO_ANSWER] * len(txs) for _ in (rpc, *others)]

    async def send_to(index: int, node: Rpc) -> None:
        answers[index] = await _send_batch(node, txs)

    async with anyio.create_task_group() as tasks:
        for index, other in enumerate(others, 1):
            tasks.start_soon(send_to, index, other)
        await send_to(0, rpc)
        # A node that answers later than this counts as not having answered.
        tasks.cancel_scope.deadline = anyio.current_time() + _OTHER_NODES_TIMEOUT_S
    return [
        SentVersion(tx, version, node_answers)
        for (tx, version), node_answers in zip(txs, zip(*answers, strict=True), strict=True)
    ]


async def _send_batch(rpc: Rpc, txs: Sequence[tuple[PendingTx, SignedVersion]]) -> list[SendResult]:
    calls = [RpcCall("eth_sendRawTransaction", ("0x" + version.signed_bytes.hex(),)) for _, version in txs]
    try:
        answers = await rpc.batch(calls)
    except (Retryable, RpcError) as error:
        log.warning("broadcast not answered", transactions=len(txs), reason=str(error))
        code = to_retryable(error, "a broadcast").code if isinstance(error, RpcError) else error.code
        # After a failure with any other code, a node may have the bytes.
        outcome = {code: sent for sent, code in _REFUSAL_CODES.items()}.get(code or "", SendResult.NO_ANSWER)
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


def apply_sent_versions(account: RelayerAccount, sent_versions: Sequence[SentVersion], now: float) -> None:
    """Update the pending transactions and the size limits with the outcomes of a broadcast."""
    for sent_version in sent_versions:
        tx = sent_version.tx
        if sent_version.refusal is not None:
            tx.refusal_code = sent_version.refusal if tx.is_unsent else tx.refusal_code
        # An accepted self-transfer says nothing about the bytes that carry relays.
        elif not (tx.is_unsent and sent_version.version.is_self_transfer):
            tx.refusal_code = None
        tx.is_unsent = tx.is_unsent and sent_version.refusal is not None
        # If a newer version exists by now, this outcome does not apply to it: the newer version is broadcast
        # separately.
        if tx.latest is sent_version.version:
            _apply_outcome(account, tx, sent_version.outcome, now)


def _apply_outcome(account: RelayerAccount, tx: PendingTx, outcome: SendResult, now: float) -> None:
    if outcome not in _NO_VERDICT_RESULTS:
        tx.record_verdict(now, account.head_number, accepted=outcome is SendResult.ACCEPTED)
    if outcome is SendResult.ACCEPTED:
        tx.record_accepted(now)
        return
    tx.record_not_accepted(now)
    match outcome:
        case SendResult.UNDERPRICED:
            tx.is_underpriced = True
        case SendResult.TOO_MUCH_GAS:
            account.tx_limits.lower_gas_limit(tx.gas_limit, now)
            abandon_tx(tx, outcome.name.lower())
        case SendResult.OVERSIZED:
            account.tx_limits.lower_byte_limit(len(tx.latest.signed_bytes), now)
            abandon_tx(tx, outcome.name.lower())
        case SendResult.UNSENDABLE:
            abandon_tx(tx, outcome.name.lower())


def abandon_tx(tx: PendingTx, reason: str) -> None:
    """Mark the transaction as unsendable, so that a self-transfer replaces it. Do nothing if the latest version is a
    self-transfer already."""
    if tx.latest.is_self_transfer or tx.is_unsendable:
        return
    tx.is_unsendable = True
    metrics.relay_replacements.labels(reason).inc()
    log.warning(
        "transaction given up", nonce=tx.nonce, gas=tx.gas_limit, bytes=len(tx.latest.signed_bytes), reason=reason
    )
