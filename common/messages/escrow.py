"""Structs that are signed to the escrow, in the domain `SVC Escrow`, which names no contract."""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import bytes32, uint64

_RELEASE: Final = Struct(">32s 32s 32s 32s 32s 24xQ")
_HANDOVER_AUTH: Final = Struct(">32s 32s 24xQ")
_HANDOVER_KEYS: Final = Struct(">32s 32s 24xQ 32s")


@frozen(slots=True)
class Release:
    """The claiming provider asks for the payload key, sealed to `response_pubkey`."""

    TYPE: ClassVar[str] = "Release(bytes32 jobId,bytes seedWrap,bytes32 ctHash,bytes32 responsePubkey,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    seed_wrap: bytes
    ct_hash: bytes = field(validator=bytes32)
    response_pubkey: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _RELEASE.pack(
            self.TYPE_HASH,
            self.job_id,
            keccak256(self.seed_wrap),
            self.ct_hash,
            self.response_pubkey,
            self.issued_at,
        )


@frozen(slots=True)
class HandoverAuth:
    """A holder of an operator key asks a peer for the escrow keys, sealed to `channel_pubkey`."""

    TYPE: ClassVar[str] = "HandoverAuth(bytes32 channelPubkey,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    channel_pubkey: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _HANDOVER_AUTH.pack(self.TYPE_HASH, self.channel_pubkey, self.issued_at)


@frozen(slots=True)
class HandoverKeys:
    """The holder answers for the keys that it hands over, to this channel and this request."""

    TYPE: ClassVar[str] = "HandoverKeys(bytes32 channelPubkey,uint64 issuedAt,bytes keys)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    channel_pubkey: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)
    keys: bytes | bytearray = field(repr=lambda _: "<SECRET>")

    def packed(self) -> bytes:
        return _HANDOVER_KEYS.pack(self.TYPE_HASH, self.channel_pubkey, self.issued_at, keccak256(self.keys))
