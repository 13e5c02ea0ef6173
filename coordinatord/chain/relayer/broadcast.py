"""Send stored bytes in JSON-RPC batches, and classify each answer by its message.

An answer never leads to a second nonce: a transaction is stored with its nonce, and only its outcome is open.
"""

import enum
from collections.abc import Sequence
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.in_flight import ENDPOINT_REFUSED, RATE_LIMITED, PendingTx, Version
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, RpcCall, retryable_of
from coordinatord.chain.rpc.errors import Meaning, RpcError

log = structlog.get_logger(__name__)

# Timeout of the other nodes after the first node's answer.
_OTHER_NODES_TIMEOUT_S: Final = 1.0


class Sent(enum.Enum):
    TAKEN = "a node has it"
    NONCE_USED = "its nonce is used: it is mined already, or another transaction used the nonce"
    UNDERPRICED = "it has to offer more"
    TOO_MUCH_GAS = "no node will ever accept these bytes: too much gas, or too high a cost"
    OVERSIZED = "no node will ever accept these bytes: too many"
    UNSENDABLE = "no node will ever accept these bytes, for another reason"
    REJECTED = "refused with an unknown message"
    NOT_SERVED = "the endpoint does not relay: it did not pass on the bytes"
    RATE_LIMITED = "the node rate-limits requests; retry the same bytes later"
    NOT_NOW = "refused for the moment, not because of the bytes; retry the same bytes later"
    LATER = "no answer: a node may have the bytes; retry the same bytes later"


_MEANINGS: Final = {
    Meaning.ALREADY_KNOWN: Sent.TAKEN,
    Meaning.NONCE_TOO_LOW: Sent.NONCE_USED,
    Meaning.UNDERPRICED: Sent.UNDERPRICED,
    Meaning.TOO_MUCH_GAS: Sent.TOO_MUCH_GAS,
    Meaning.OVERSIZED: Sent.OVERSIZED,
    Meaning.GAS: Sent.UNSENDABLE,
    Meaning.REFUSED: Sent.NOT_SERVED,
    Meaning.NONCE_TOO_HIGH: Sent.NOT_NOW,
    Meaning.NO_FUNDS: Sent.NOT_NOW,
    Meaning.POOL_FULL: Sent.NOT_NOW,
    Meaning.RATE_LIMITED: Sent.RATE_LIMITED,
}
# Outcomes after which the node does not have the bytes, with the error code for callers if no node ever accepts them.
_REFUSALS: Final = {
    Sent.UNDERPRICED: "rpc_internal",
    Sent.TOO_MUCH_GAS: "rpc_internal",
    Sent.OVERSIZED: "rpc_internal",
    Sent.UNSENDABLE: "rpc_internal",
    Sent.REJECTED: "rpc_internal",
    Sent.NOT_SERVED: ENDPOINT_REFUSED,
    Sent.RATE_LIMITED: RATE_LIMITED,
    Sent.NOT_NOW: "rpc_internal",
}
# Outcomes that are no verdict on the bytes, least informative first.
NO_VERDICT: Final = (Sent.LATER, Sent.RATE_LIMITED, Sent.NOT_NOW, Sent.NOT_SERVED)


@attrs.frozen(slots=True)
class Sending:
    """One version of a transaction, with each node's answer."""

    tx: PendingTx
    version: Version
    answers: tuple[Sent, ...]

    @property
    def outcome(self) -> Sent:
        """TAKEN if any node accepted the bytes, otherwise the first verdict on them."""
        if Sent.TAKEN in self.answers:
            return Sent.TAKEN
        verdicts = [answer for answer in self.answers if answer not in NO_VERDICT]
        return verdicts[0] if verdicts else next(answer for answer in NO_VERDICT if answer in self.answers)

    @property
    def refusal(self) -> str | None:
        """Error code if no node has the bytes, or None when a node may have them."""
        return _REFUSALS[self.outcome] if all(answer in _REFUSALS for answer in self.answers) else None


async def broadcast(rpc: Rpc, txs: Sequence[PendingTx]) -> list[Sending]:
    """Send the latest version of each transaction to all nodes, in nonce order. All nodes receive the same bytes."""
    outcomes: list[Sending] = []
    for start in range(0, len(txs), CALLS_PER_REQUEST):
        some = txs[start : start + CALLS_PER_REQUEST]
        outcomes += await _send_to_all(rpc, [(tx, tx.latest) for tx in some])
    return outcomes


async def _send_to_all(rpc: Rpc, txs: Sequence[tuple[PendingTx, Version]]) -> list[Sending]:
    others = rpc.others
    answers = [[Sent.LATER] * len(txs) for _ in (rpc, *others)]

    async def send_to(place: int, node: Rpc) -> None:
        answers[place] = await _send_batch(node, txs)

    async with anyio.create_task_group() as tasks:
        for place, other in enumerate(others, 1):
            tasks.start_soon(send_to, place, other)
        await send_to(0, rpc)
        # Slower nodes count as unanswered.
        tasks.cancel_scope.deadline = anyio.current_time() + _OTHER_NODES_TIMEOUT_S
    return [Sending(tx, version, each) for (tx, version), each in zip(txs, zip(*answers, strict=True), strict=True)]


async def _send_batch(rpc: Rpc, txs: Sequence[tuple[PendingTx, Version]]) -> list[Sent]:
    calls = [RpcCall("eth_sendRawTransaction", ("0x" + version.raw.hex(),)) for _, version in txs]
    try:
        answers = await rpc.batch(calls)
    except (Retryable, RpcError) as error:
        log.warning("broadcast not answered", transactions=len(txs), reason=str(error))
        return [_outcome_of_all(error)] * len(txs)
    return [_outcome(tx, answer) for (tx, _), answer in zip(txs, answers, strict=True)]


def _outcome_of_all(error: Retryable | RpcError) -> Sent:
    """Outcome for every transaction of a request that failed as a whole."""
    code = retryable_of(error, "a broadcast").code if isinstance(error, RpcError) else error.code
    match code:
        case "endpoint_refused":
            return Sent.NOT_SERVED
        case "rate_limited":
            return Sent.RATE_LIMITED
    # A node may have the bytes.
    return Sent.LATER


def _outcome(tx: PendingTx, answer: object) -> Sent:
    if not isinstance(answer, RpcError):
        return Sent.TAKEN
    outcome = _MEANINGS.get(answer.meaning, Sent.REJECTED)
    if outcome is Sent.NONCE_USED and tx.taken_at is not None:
        # A reminder usually meets a transaction that was just mined. The next look at the head shows the result.
        log.info("broadcast again after its nonce was used", nonce=tx.nonce)
    elif outcome is not Sent.TAKEN:
        log.warning("broadcast refused", nonce=tx.nonce, meaning=answer.meaning.value, reason=str(answer))
    return outcome
