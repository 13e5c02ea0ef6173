"""Sending stored bytes in JSON-RPC batches, each answer classified by its message.

No answer ever leads to a second nonce: a transaction is stored with its nonce, and only its fate is open.
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

_OTHERS_TIMEOUT_S: Final = 1.0  # for the other nodes, once the first has answered


class Sent(enum.Enum):
    TAKEN = "a node has it"
    NONCE_USED = "its nonce is used: by itself, mined already, or by a transaction that is not ours"
    UNDERPRICED = "it has to offer more"
    TOO_MUCH_GAS = "no node will ever take these bytes: they ask for too much gas, or may cost too much"
    OVERSIZED = "no node will ever take these bytes: they are too many"
    UNSENDABLE = "no node will ever take these bytes, for another reason"
    REJECTED = "refused, in words that by themselves prove nothing"
    NOT_SERVED = "the endpoint serves no sending: nobody has these bytes by it"
    RATE_LIMITED = "the node limits our requests; the same bytes later"
    NOT_NOW = "refused for the moment, through no fault of the bytes; the same bytes later"
    LATER = "no answer: a node may have the bytes; the same bytes later"


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
# Outcomes after which a node does not have the bytes, with the code that callers read if no node ever does.
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
# Outcomes that are no verdict on the bytes, the one that says least first.
NO_VERDICT: Final = (Sent.LATER, Sent.RATE_LIMITED, Sent.NOT_NOW, Sent.NOT_SERVED)


@attrs.frozen(slots=True)
class Sending:
    """Outcome of sending one version. `refusal`: why no node has it, or None when a node may have it."""

    tx: PendingTx
    version: Version
    outcome: Sent
    refusal: str | None = attrs.field()

    @refusal.default
    def _refusal_by_outcome(self) -> str | None:
        return _REFUSALS.get(self.outcome)


async def broadcast(rpc: Rpc, txs: Sequence[PendingTx]) -> list[Sending]:
    """Send the latest version of each, in nonce order, to this node and to all others. The bytes are the same, so it
    does not matter which node has them first."""
    outcomes: list[Sending] = []
    for start in range(0, len(txs), CALLS_PER_REQUEST):
        some = txs[start : start + CALLS_PER_REQUEST]
        outcomes += await _send_to_all(rpc, [(tx, tx.latest) for tx in some])
    return outcomes


async def _send_to_all(rpc: Rpc, txs: Sequence[tuple[PendingTx, Version]]) -> list[Sending]:
    told: list[list[Sending]] = [[]]
    others = rpc.others

    async def send_to(other: Rpc) -> None:
        told.append([Sending(tx, version, Sent.LATER) for tx, version in txs])
        place = len(told) - 1
        told[place] = await _send_batch(other, txs)

    async with anyio.create_task_group() as tasks:
        for other in others:
            tasks.start_soon(send_to, other)
        told[0] = await _send_batch(rpc, txs)
        # The others may be slow: what they have not told by then is not known.
        tasks.cancel_scope.deadline = anyio.current_time() + _OTHERS_TIMEOUT_S
    return [_combine(sendings) for sendings in zip(*told, strict=True)]


def _combine(sendings: Sequence[Sending]) -> Sending:
    """Combine the answers of several nodes for one version of a transaction.

    The version is sent if any node accepted it. Otherwise the first verdict counts. It is refused only if every node
    refused it.
    """
    outcomes = [sending.outcome for sending in sendings]
    verdicts = [outcome for outcome in outcomes if outcome not in NO_VERDICT]
    if Sent.TAKEN in outcomes:
        outcome = Sent.TAKEN
    elif verdicts:
        outcome = verdicts[0]
    else:
        outcome = next(outcome for outcome in NO_VERDICT if outcome in outcomes)
    refusal = None if any(sending.refusal is None for sending in sendings) else _REFUSALS.get(outcome)
    return Sending(sendings[0].tx, sendings[0].version, outcome, refusal)


async def _send_batch(rpc: Rpc, txs: Sequence[tuple[PendingTx, Version]]) -> list[Sending]:
    calls = [RpcCall("eth_sendRawTransaction", ("0x" + version.raw.hex(),)) for _, version in txs]
    try:
        answers = await rpc.batch(calls)
    except (Retryable, RpcError) as error:
        log.warning("broadcast not answered", transactions=len(txs), reason=str(error))
        return [Sending(tx, version, _outcome_of_all(error)) for tx, version in txs]
    return [Sending(tx, version, _outcome(tx, answer)) for (tx, version), answer in zip(txs, answers, strict=True)]


def _outcome_of_all(error: Retryable | RpcError) -> Sent:
    """Outcome for every transaction of a request that failed as a whole."""
    code = retryable_of(error, "a broadcast").code if isinstance(error, RpcError) else error.code
    match code:
        case "endpoint_refused":
            return Sent.NOT_SERVED
        case "rate_limited":
            return Sent.RATE_LIMITED
    return Sent.LATER  # a node may have the bytes


def _outcome(tx: PendingTx, answer: object) -> Sent:
    if not isinstance(answer, RpcError):
        return Sent.TAKEN
    outcome = _MEANINGS.get(answer.meaning, Sent.REJECTED)
    if outcome is Sent.NONCE_USED and tx.taken_at is not None:
        # Reminded of it when it was just mined, as a rule; the next look at the head tells.
        log.info("broadcast again after its nonce was used", nonce=tx.nonce)
    elif outcome is not Sent.TAKEN:
        log.warning("broadcast refused", nonce=tx.nonce, meaning=answer.meaning.value, reason=str(answer))
    return outcome
