"""Structs that a wallet signs to sign in (`SVC Session`) and to derive its result key (`SVC Results`)."""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import address

_SVC_SESSION_LAYOUT: Final = Struct(">32s 12x20s 32s")
_RESULT_KEY_LAYOUT: Final = Struct(">32s 32s")


@frozen(slots=True)
class SvcSession:
    """Sign-in of `address` with a nonce from the coordinator."""

    TYPE: ClassVar[str] = "SvcSession(address address,string nonce)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    address: bytes = field(validator=address)
    nonce: str

    def packed(self) -> bytes:
        return _SVC_SESSION_LAYOUT.pack(self.TYPE_HASH, self.address, keccak256(self.nonce.encode("utf-8")))


@frozen(slots=True)
class ResultKey:
    """Message whose deterministic signature is the seed of a wallet's result key. The signature is never sent."""

    TYPE: ClassVar[str] = "ResultKey(string purpose)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    purpose: str

    def packed(self) -> bytes:
        return _RESULT_KEY_LAYOUT.pack(self.TYPE_HASH, keccak256(self.purpose.encode("utf-8")))
