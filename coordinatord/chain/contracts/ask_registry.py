"""Ask registry: typed reads, and the calldata of a publication."""

from typing import Final

import attrs
import msgspec

from common import abi
from common.messages.providers import AskSnapshot
from common.scalars import hex_of
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import View, read_view, unreadable

_PUBLISH: Final = abi.selector("publish(uint32,uint64,(uint32,uint32,uint128,uint128)[],bytes)")
_LATEST_SIGNED_AT: Final = abi.selector("latestSignedAt(uint32)")
_PUBLISHED: Final = hex_of(abi.topic("AsksPublished(uint32,uint64,(uint32,uint32,uint128,uint128)[])"))


class _Log(msgspec.Struct):
    address: str
    topics: list[str]
    data: str


class _PostReceipt(msgspec.Struct):
    logs: list[_Log]


@attrs.frozen(slots=True)
class AskRegistry:
    rpc: Rpc
    address: bytes

    async def latest_signed_at(self, provider_id: int) -> int:
        """Return the time of the newest publication, or 0 if the provider never published."""
        view = View(self.address, abi.call(_LATEST_SIGNED_AT, abi.uint(provider_id)), "registry_floor_read")
        return await read_view(self.rpc, view, lambda data: abi.uint_at(data, 0, 64))

    async def published_in(self, tx_hash: bytes, provider_id: int, signed_at: int) -> bool:
        """Return True when this mined transaction recorded the snapshot. A stale snapshot is skipped without an
        event."""
        try:
            receipt = await self.rpc.call_as(_PostReceipt, "eth_getTransactionReceipt", hex_of(tx_hash))
        except RpcError as error:
            raise unreadable(error, "publication_skipped") from error
        topics = [_PUBLISHED, hex_of(abi.uint(provider_id))]
        # The first word of the data.
        head = hex_of(abi.uint(signed_at))
        return any(
            log.address.lower() == hex_of(self.address) and log.topics == topics and log.data.startswith(head)
            for log in receipt.logs
        )


def publish(snapshot: AskSnapshot, signature: bytes) -> bytes:
    rows = [
        abi.join((abi.uint(q.model_id), abi.uint(q.sla), abi.uint(q.rate_in), abi.uint(q.rate_out)))
        for q in snapshot.quotes
    ]
    return abi.call(
        _PUBLISH,
        abi.uint(snapshot.provider_id),
        abi.uint(snapshot.signed_at),
        abi.array(rows),
        abi.dynamic(signature),
    )
