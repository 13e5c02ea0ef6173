"""EIP-712 domains and digests. The structs are packed in `common/messages`.

digest = keccak256(0x19 ‖ 0x01 ‖ domain separator (32) ‖ struct hash (32))
"""

from functools import cached_property
from typing import Final, Protocol

import attrs

from common.keccak import keccak256


@attrs.frozen(slots=True)
class Domain:
    """Signing domain. `verifying_contract` is 20 bytes, or None for a domain without that field."""

    name: str
    version: str
    chain_id: int
    verifying_contract: bytes | None = None

    @cached_property
    def separator(self) -> bytes:
        type_ = "EIP712Domain(string name,string version,uint256 chainId"
        words = (
            keccak256(self.name.encode("utf-8"))
            + keccak256(self.version.encode("utf-8"))
            + self.chain_id.to_bytes(32, "big")
        )
        if self.verifying_contract is not None:
            if len(self.verifying_contract) != 20:
                raise ValueError("verifying_contract must have 20 bytes")
            type_ += ",address verifyingContract"
            words += bytes(12) + self.verifying_contract
        return keccak256(keccak256(f"{type_})".encode("ascii")) + words)


class Message(Protocol):
    """Struct that a wallet signs."""

    def packed(self) -> bytes:
        """Return the words that the struct hash covers: the type hash, then the fields."""


def struct_hash(message: Message) -> bytes:
    return keccak256(message.packed())


DIGEST_PREFIX: Final = b"\x19\x01"


def digest(separator: bytes, hash_of_struct: bytes) -> bytes:
    """Return the digest that a wallet signs, from a domain separator and a struct hash."""
    return keccak256(DIGEST_PREFIX + separator + hash_of_struct)
