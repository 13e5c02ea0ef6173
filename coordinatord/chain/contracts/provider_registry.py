"""Read the provider registry, and encode calls to it."""

from typing import Final

import attrs

from common import abi
from common.api.market import AllowlistStatus
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.views import View, read_view

_PROVIDER_ID_OF_SELECTOR: Final = abi.selector("providerIdOf(address)")
_ALLOWLIST_STATUS_SELECTOR: Final = abi.selector("allowlistStatus(bytes32)")
_SET_IDENTITY_SELECTOR: Final = abi.selector("setIdentity(bytes32,bytes,uint64,bytes)")
_REQUEST_CAPACITY_SELECTOR: Final = abi.selector("requestCapacity(uint32,uint64,bytes)")

NOT_LISTED: Final = AllowlistStatus.NOT_LISTED
TOMBSTONED: Final = AllowlistStatus.TOMBSTONED


@attrs.frozen(slots=True)
class ProviderRegistry:
    rpc: Rpc
    address: bytes

    async def read_provider_id(self, operator: bytes) -> int | None:
        """Return the provider id of a wallet, or None if the wallet is not registered."""
        return await read_view(self.rpc, self.provider_id_view(operator), decode_provider_id)

    def provider_id_view(self, operator: bytes, block: str = "latest") -> View:
        return View(
            self.address,
            abi.call_data(_PROVIDER_ID_OF_SELECTOR, abi.address(operator)),
            "provider_id_read",
            block=block,
        )

    async def read_allowlist_status(self, key: bytes) -> int:
        """Return NOT_LISTED, 1 (allowed) or TOMBSTONED."""
        view = View(self.address, abi.call_data(_ALLOWLIST_STATUS_SELECTOR, abi.bytes32(key)), "allowlist_status_read")
        return await read_view(self.rpc, view, lambda data: abi.uint_at(data, 0, 8))


def decode_provider_id(data: bytes) -> int | None:
    return abi.uint_at(data, 0, 32) or None


def set_identity_calldata(box_key: bytes, evidence: bytes, issued_at: int, signature: bytes) -> bytes:
    return abi.call_data(
        _SET_IDENTITY_SELECTOR,
        abi.bytes32(box_key),
        abi.dynamic_bytes(evidence),
        abi.uint(issued_at),
        abi.dynamic_bytes(signature),
    )


def request_capacity_calldata(n: int, issued_at: int, signature: bytes) -> bytes:
    return abi.call_data(_REQUEST_CAPACITY_SELECTOR, abi.uint(n), abi.uint(issued_at), abi.dynamic_bytes(signature))
