"""Contract reads that concurrent ops share.

Many providers act at the same moment: on each block they claim new jobs and settle earlier ones. A request to the node
costs more than the call in it. So reads that arrive during a request go into the next one, and equal reads are merged.
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

# Concurrent requests. A slow answer delays at most half of the reads.
_MAX_REQUESTS: Final = 2

Answer = bytes | Reverted


class SharedViews:
    """Batched reads at the latest block. An answer is from a block that was the latest after the call to `get`.

    Do not use it where several reads must come from one node, as in decisions of the relayer.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._reads: BatchedReads[View, Answer | Retryable] = BatchedReads(
            rpc, _read, concurrency=_MAX_REQUESTS, max_keys=CALLS_PER_REQUEST
        )

    async def get(self, view: View) -> Answer:
        """Return the answer. Raise Retryable with the view's code. Failures of other reads in the batch do not
        matter."""
        answer = await self._reads.get(view)
        if isinstance(answer, Retryable):
            raise answer
        return answer

    async def provider_of(self, providers: ProviderRegistry, operator: bytes) -> int | None:
        """Return the registry id of a wallet, or None if it is not registered."""
        view = providers.provider_id_view(operator)
        answer = await self.get(view)
        if isinstance(answer, Reverted):
            raise Retryable("relay_unavailable", "a contract read reverted: try again", view.code)
        return decoded(answer, read_provider_id, view.code)


async def _read(rpc: Rpc, views: list[View]) -> dict[View, Answer | Retryable]:
    try:
        answers: Sequence[msgspec.Raw | RpcError] = await rpc.batch([view.as_call() for view in views])
    # Nodes often report a limit once for the whole batch.
    except RpcError as error:
        answers = [error] * len(views)
    return {view: _answer_of(view, answer) for view, answer in zip(views, answers, strict=True)}


def _answer_of(view: View, answer: msgspec.Raw | RpcError) -> Answer | Retryable:
    if isinstance(answer, RpcError):
        return Reverted(answer.data) if answer.meaning is Meaning.REVERTED else unreadable(answer, view.code)
    try:
        return hex_bytes(decode_result(answer, str, "a contract read"), view.code)
    except Retryable as error:
        return error
