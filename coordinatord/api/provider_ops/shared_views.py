"""Views of contracts that several ops ask for at once, read from the node together.

Providers act by the dozen: when a block is there they claim, and settle what the last one claimed. A request to the
node costs more than the view that it carries; so those that are asked for while one is under way go in the next, and
what is asked for twice goes once.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.provider_registry import ProviderRegistry, read_provider_id
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, decode_result
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.chain.rpc.views import Reverted, View, decoded, hex_bytes, unreadable
from coordinatord.storage.database.batched_reads import BatchedReads

_AT_ONCE: Final = 2  # requests: an answer that is slow to come holds up no more than half

Answer = bytes | Reverted


class SharedViews:
    """`get` from any task: the answer is of a block that was the latest after the call. Of no use for a view of one
    node's state, as a decision of the relayer's is."""

    def __init__(self, rpc: Rpc) -> None:
        self._reads: BatchedReads[View, Answer | Retryable] = BatchedReads(
            rpc, _read, at_once=_AT_ONCE, most=CALLS_PER_REQUEST
        )

    async def get(self, view: View) -> Answer:
        """Raises Retryable with the view's own code; what fails of others that went along is theirs alone."""
        answer = await self._reads.get(view)
        if isinstance(answer, Retryable):
            raise answer
        return answer

    async def provider_of(self, providers: ProviderRegistry, operator: bytes) -> int | None:
        """The registry id of a wallet; None when it is not registered."""
        view = providers.provider_id_view(operator)
        answer = await self.get(view)
        if isinstance(answer, Reverted):
            raise Retryable("relay_unavailable", "the chain refuses a read", view.code)
        return decoded(answer, read_provider_id, view.code)


async def _read(rpc: Rpc, views: list[View]) -> dict[View, Answer | Retryable]:
    try:
        answers: Sequence[msgspec.Raw | RpcError] = await rpc.batch([view.as_call() for view in views])
    except RpcError as error:  # one for all of them: limits are mostly told so
        answers = [error] * len(views)
    return {view: _told(view, answer) for view, answer in zip(views, answers, strict=True)}


def _told(view: View, answer: msgspec.Raw | RpcError) -> Answer | Retryable:
    if isinstance(answer, RpcError):
        return Reverted(answer.data) if answer.meaning is Meaning.REVERTED else unreadable(answer, view.code)
    try:
        return hex_bytes(decode_result(answer, str, "a contract read"), view.code)
    except Retryable as error:
        return error
