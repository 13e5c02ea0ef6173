"""Share contract reads between concurrent ops.

Many providers act at the same moment: on each block they claim new jobs and settle earlier ones. A request to the node
costs more than the calls in it. So reads that arrive during a request wait for the next request, and equal reads are
merged.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.provider_registry import ProviderRegistry, decode_provider_id
from coordinatord.chain.rpc.client import CALLS_PER_REQUEST, Rpc, decode_result
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.chain.rpc.views import Reverted, View, decode_hex, decode_view, view_error
from coordinatord.storage.database.batched_reads import BatchedReads

# With two requests at a time, a slow answer delays at most half of the reads.
_MAX_CONCURRENT_REQUESTS: Final = 2

ViewAnswer = bytes | Reverted


class SharedViews:
    """Batched reads at the latest block. Each answer comes from a block that was the latest at some moment after the
    call of `read_view`.

    Do not use this class where several reads must come from one node, as in decisions of the relayer.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._reads: BatchedReads[View, ViewAnswer | Retryable] = BatchedReads(
            rpc, _read_views, concurrency=_MAX_CONCURRENT_REQUESTS, max_keys=CALLS_PER_REQUEST
        )

    async def read_view(self, view: View) -> ViewAnswer:
        """Return the answer, or raise Retryable with the view's code. A failure of another read in the batch has no
        effect on this read."""
        answer = await self._reads.get(view)
        if isinstance(answer, Retryable):
            raise answer
        return answer

    async def read_provider_id(self, providers: ProviderRegistry, operator: bytes) -> int | None:
        """Return the registry id of a wallet, or None if it is not registered."""
        view = providers.provider_id_view(operator)
        answer = await self.read_view(view)
        if isinstance(answer, Reverted):
            raise Retryable("relay_unavailable", "a contract read reverted; try again", view.error_code)
        return decode_view(answer, decode_provider_id, view.error_code)


async def _read_views(rpc: Rpc, views: list[View]) -> dict[View, ViewAnswer | Retryable]:
    try:
        answers: Sequence[msgspec.Raw | RpcError] = await rpc.batch([view.as_call() for view in views])
    except RpcError as error:  # nodes often report an exceeded limit once for the whole batch
        answers = [error] * len(views)
    return {view: _decode_answer(view, answer) for view, answer in zip(views, answers, strict=True)}


def _decode_answer(view: View, answer: msgspec.Raw | RpcError) -> ViewAnswer | Retryable:
    if isinstance(answer, RpcError):
        return Reverted(answer.data) if answer.kind is RpcErrorKind.REVERTED else view_error(answer, view.error_code)
    try:
        return decode_hex(decode_result(answer, str, "a contract read"), view.error_code)
    except Retryable as error:
        return error
