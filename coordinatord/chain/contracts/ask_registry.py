"""Read the ask registry, and encode a publication of asks."""

from typing import Final

import attrs
import msgspec

from common import abi
from common.messages.providers import AskSnapshot
from common.scalars import hex_of
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import View, read_view, view_error

_PUBLISH_SELECTOR: Final = abi.selector("publish(uint32,uint64,(uint32,uint32,uint128,uint128)[],bytes)")
_LATEST_SIGNED_AT_SELECTOR: Final = abi.selector("latestSignedAt(uint32)")
_PUBLISHED_TOPIC: Final = hex_of(abi.topic("AsksPublished(uint32,uint64,(uint32,uint32,uint128,uint128)[])"))


class _Log(msgspec.Struct):
    address: str
    topics: list[str]
    data: str


class _PublicationReceipt(msgspec.Struct):
    logs: list[_Log]


@attrs.frozen(slots=True)
class AskRegistry:
    rpc: Rpc
    address: bytes

    async def read_latest_signed_at(self, provider_id: int) -> int:
        """Return the signing time of the provider's newest publication, or 0 if the provider never published."""
        view = View(
            self.address, abi.call_data(_LATEST_SIGNED_AT_SELECTOR, abi.uint(provider_id)), "registry_floor_read"
        )
        return await read_view(self.rpc, view, lambda data: abi.uint_at(data, 0, 64))

    async def was_published_in(self, tx_hash: bytes, provider_id: int, signed_at: int) -> bool:
        """Return True when this mined transaction recorded the snapshot. The registry skips a stale snapshot without an
        event."""
        try:
            receipt = await self.rpc.call_as(_PublicationReceipt, "eth_getTransactionReceipt", hex_of(tx_hash))
        except RpcError as error:
            raise view_error(error, "publication_skipped") from error
        topics = [_PUBLISHED_TOPIC, hex_of(abi.uint(provider_id))]
        # `signed_at` is the first word of the data.
        head = hex_of(abi.uint(signed_at))
        return any(
            log.address.lower() == hex_of(self.address) and log.topics == topics and log.data.startswith(head)
            for log in receipt.logs
        )


def publish_calldata(snapshot: AskSnapshot, signature: bytes) -> bytes:
    rows = [
        abi.static_struct((abi.uint(q.model_id), abi.uint(q.sla), abi.uint(q.rate_in), abi.uint(q.rate_out)))
        for q in snapshot.quotes
    ]
    return abi.call_data(
        _PUBLISH_SELECTOR,
        abi.uint(snapshot.provider_id),
        abi.uint(snapshot.signed_at),
        abi.array(rows),
        abi.dynamic_bytes(signature),
    )
