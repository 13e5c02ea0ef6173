"""Structs that providers sign: identity and capacity (domain `SVC Providers`) and prices (domain `SVC Asks`)."""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import MASK64, bytes32, uint32, uint64, uint128

_SET_IDENTITY_LAYOUT: Final = Struct(">32s 32s 32s 24xQ")
_REQUEST_CAPACITY_LAYOUT: Final = Struct(">32s 28xI 24xQ")
_ASK_LAYOUT: Final = Struct(">32s 28xI 28xI 16xQQ 16xQQ")
_ASK_SNAPSHOT_LAYOUT: Final = Struct(">32s 28xI 24xQ 32s")


@frozen(slots=True)
class SetIdentity:
    """X25519 key to which clients seal designated orders, and the evidence for this key."""

    TYPE: ClassVar[str] = "SetIdentity(bytes32 boxKey,bytes evidence,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    box_key: bytes = field(validator=bytes32)
    evidence: bytes
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _SET_IDENTITY_LAYOUT.pack(self.TYPE_HASH, self.box_key, keccak256(self.evidence), self.issued_at)


@frozen(slots=True)
class RequestCapacity:
    """Request for a capacity of `n` concurrent jobs."""

    TYPE: ClassVar[str] = "RequestCapacity(uint32 n,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    n: int = field(validator=uint32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _REQUEST_CAPACITY_LAYOUT.pack(self.TYPE_HASH, self.n, self.issued_at)


@frozen(slots=True)
class Ask:
    """One price in an `AskSnapshot`. An ask with both rates 0 withdraws the price."""

    TYPE: ClassVar[str] = "Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    model_id: int = field(validator=uint32)
    sla: int = field(validator=uint32)
    rate_in: int = field(validator=uint128)
    rate_out: int = field(validator=uint128)

    def packed(self) -> bytes:
        return _ASK_LAYOUT.pack(
            self.TYPE_HASH,
            self.model_id,
            self.sla,
            self.rate_in >> 64,
            self.rate_in & MASK64,
            self.rate_out >> 64,
            self.rate_out & MASK64,
        )


@frozen(slots=True)
class AskSnapshot:
    """Prices that one provider publishes at one time."""

    TYPE: ClassVar[str] = "AskSnapshot(uint32 providerId,uint64 signedAt,Ask[] quotes)" + Ask.TYPE
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    provider_id: int = field(validator=uint32)
    signed_at: int = field(validator=uint64)
    quotes: tuple[Ask, ...]

    def packed(self) -> bytes:
        quotes = keccak256(b"".join([keccak256(quote.packed()) for quote in self.quotes]))
        return _ASK_SNAPSHOT_LAYOUT.pack(self.TYPE_HASH, self.provider_id, self.signed_at, quotes)
