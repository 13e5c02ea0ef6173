"""Structs that owners and providers sign for the job registry (domain `SVC Jobs`).

One `struct` call packs each message. An integer of n bytes follows 32 − n zero bytes, and a uint128 is packed as two
64-bit integers.
"""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import MASK64, bytes32, checked_by_class, raise_invalid_field, uint32, uint64, uint128

_ORDER_LAYOUT: Final = Struct(">32s 32s 28xI 28xI 16xQQ 16xQQ 28xI 28xI 28xI 24xQ")
_JOB_AND_TIME_LAYOUT: Final = Struct(">32s 32s 24xQ")
_SETTLE_LAYOUT: Final = Struct(">32s 32s 28xI 24xQ")


@frozen(slots=True)
class Order:
    """Order of a job. The signature covers the container through its commitment `c`, but not the task CID."""

    TYPE: ClassVar[str] = (
        "Order(bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,"
        "uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt)"
    )
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    c: bytes = checked_by_class(bytes32)
    model_id: int = checked_by_class(uint32)
    sla_secs: int = checked_by_class(uint32)
    rate_in: int = checked_by_class(uint128)
    rate_out: int = checked_by_class(uint128)
    units_in: int = checked_by_class(uint32)
    units_out: int = checked_by_class(uint32)
    designated: int = checked_by_class(uint32)
    expires_at: int = checked_by_class(uint64)

    def __attrs_post_init__(self) -> None:
        if (
            (self.model_id | self.sla_secs | self.units_in | self.units_out | self.designated) >> 32
            or (self.rate_in | self.rate_out) >> 128
            or self.expires_at >> 64
            or len(self.c) != 32
        ):
            raise_invalid_field(self)

    def packed(self) -> bytes:
        return _ORDER_LAYOUT.pack(
            self.TYPE_HASH,
            self.c,
            self.model_id,
            self.sla_secs,
            self.rate_in >> 64,
            self.rate_in & MASK64,
            self.rate_out >> 64,
            self.rate_out & MASK64,
            self.units_in,
            self.units_out,
            self.designated,
            self.expires_at,
        )


@frozen(slots=True)
class Cancel:
    """Cancellation of an open job by its owner."""

    TYPE: ClassVar[str] = "Cancel(bytes32 jobId,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _JOB_AND_TIME_LAYOUT.pack(self.TYPE_HASH, self.job_id, self.issued_at)


@frozen(slots=True)
class Claim:
    """Claim of an open job by a provider."""

    TYPE: ClassVar[str] = "Claim(bytes32 jobId,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _JOB_AND_TIME_LAYOUT.pack(self.TYPE_HASH, self.job_id, self.issued_at)


@frozen(slots=True)
class Settle:
    """Delivery of a result by the claiming provider. The signature does not cover the result CID."""

    TYPE: ClassVar[str] = "Settle(bytes32 jobId,uint32 completionTok,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    completion_tok: int = field(validator=uint32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _SETTLE_LAYOUT.pack(self.TYPE_HASH, self.job_id, self.completion_tok, self.issued_at)


@frozen(slots=True)
class Fail:
    """Abandonment of a job by the claiming provider. The owner gets a refund."""

    TYPE: ClassVar[str] = "Fail(bytes32 jobId,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _JOB_AND_TIME_LAYOUT.pack(self.TYPE_HASH, self.job_id, self.issued_at)
