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
    """One version of a transaction, as each node answered it."""

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
        """Why no node has the bytes, or None when a node may have them."""
        return _REFUSALS[self.outcome] if all(answer in _REFUSALS for answer in self.answers) else None


async def broadcast(rpc: Rpc, txs: Sequence[PendingTx]) -> list[Sending]:
    """Send the latest version of each, in nonce order, to this node and to all others. The bytes are the same, so it
    does not matter which node has them first."""
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
        # Answers of slower nodes are not known.
        tasks.cancel_scope.deadline = anyio.current_time() + _OTHERS_TIMEOUT_S
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
