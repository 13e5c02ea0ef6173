"""Structs that providers and escrow instances sign (domain `SVC Escrow`, which has no contract)."""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import bytes32, uint64

_RELEASE_LAYOUT: Final = Struct(">32s 32s 32s 32s 32s 24xQ")
_HANDOVER_AUTH_LAYOUT: Final = Struct(">32s 32s 24xQ")
_HANDOVER_KEYS_LAYOUT: Final = Struct(">32s 32s 24xQ 32s")


@frozen(slots=True)
class Release:
    """Request of the claiming provider for the payload's data key. The escrow seals the key to `response_pubkey`."""

    TYPE: ClassVar[str] = "Release(bytes32 jobId,bytes seedWrap,bytes32 ctHash,bytes32 responsePubkey,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    job_id: bytes = field(validator=bytes32)
    seed_wrap: bytes
    # Hash of the container's ciphertext. The signed type fixes the name of this member.
    ct_hash: bytes = field(validator=bytes32)
    response_pubkey: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _RELEASE_LAYOUT.pack(
            self.TYPE_HASH,
            self.job_id,
            keccak256(self.seed_wrap),
            self.ct_hash,
            self.response_pubkey,
            self.issued_at,
        )


@frozen(slots=True)
class HandoverAuth:
    """Request for a peer's escrow keys, signed by an operator key. The peer seals the keys to `channel_pubkey`."""

    TYPE: ClassVar[str] = "HandoverAuth(bytes32 channelPubkey,uint64 issuedAt)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    channel_pubkey: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)

    def packed(self) -> bytes:
        return _HANDOVER_AUTH_LAYOUT.pack(self.TYPE_HASH, self.channel_pubkey, self.issued_at)


@frozen(slots=True)
class HandoverKeys:
    """Escrow keys that an instance hands over, bound to the channel key and the time of the request."""

    TYPE: ClassVar[str] = "HandoverKeys(bytes32 channelPubkey,uint64 issuedAt,bytes keys)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    channel_pubkey: bytes = field(validator=bytes32)
    issued_at: int = field(validator=uint64)
    keys: bytes | bytearray = field(repr=lambda _: "<SECRET>")

    def packed(self) -> bytes:
        return _HANDOVER_KEYS_LAYOUT.pack(self.TYPE_HASH, self.channel_pubkey, self.issued_at, keccak256(self.keys))
