"""Structs signed for tabs (domain `SVC Tabs`). A wallet delegates to a tab's key, and that key signs vouchers."""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import address, bytes32, uint32, uint64

_TAB_KEY_LAYOUT: Final = Struct(">32s 12x20s 28xI 24xQ")
_TAB_VOUCHER_LAYOUT: Final = Struct(">32s 32s 28xI 28xI 28xI 32s")


@frozen(slots=True)
class TabKey:
    """Delegation of the owner's wallet, which lets `key` sign the vouchers of one tab with this provider."""

    TYPE: ClassVar[str] = "TabKey(address key,uint32 providerId,uint64 expiresAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    # Address of the tab's key. The signed type fixes the name of this member.
    key: bytes = field(validator=address)
    provider_id: int = field(validator=uint32)
    expires_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _TAB_KEY_LAYOUT.pack(self.TYPE_HASH, self.key, self.provider_id, self.expires_at)


@frozen(slots=True)
class TabVoucher:
    """Voucher signed by the tab's key: the largest allowed charge, and the units that the client has acknowledged.

    `allowance` and `acknowledged` are values of `completion_tok`. `chain` is the hash of the acknowledged exchanges.
    """

    TYPE: ClassVar[str] = "TabVoucher(bytes32 jobId,uint32 number,uint32 allowance,uint32 acknowledged,bytes32 chain)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    number: int = field(validator=uint32)
    allowance: int = field(validator=uint32)
    acknowledged: int = field(validator=uint32)
    chain: bytes = field(validator=bytes32)

    def packed(self) -> bytes:
        return _TAB_VOUCHER_LAYOUT.pack(
            self.TYPE_HASH, self.job_id, self.number, self.allowance, self.acknowledged, self.chain
        )
