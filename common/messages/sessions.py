"""Structs that a wallet signs to use the API: sign-in (`SVC Session`), and its result key (`SVC Results`)."""

from struct import Struct
from typing import ClassVar, Final

from attrs import field, frozen

from common.keccak import keccak256
from common.messages.fields import address

_SVC_SESSION: Final = Struct(">32s 12x20s 32s")
_RESULT_KEY: Final = Struct(">32s 32s")


@frozen(slots=True)
class SvcSession:
    """Opens a session for `address` with a nonce that the coordinator gave out."""

    TYPE: ClassVar[str] = "SvcSession(address address,string nonce)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    address: bytes = field(validator=address)
    nonce: str

    def packed(self) -> bytes:
        return _SVC_SESSION.pack(self.TYPE_HASH, self.address, keccak256(self.nonce.encode("utf-8")))


@frozen(slots=True)
class ResultKey:
    """Never sent anywhere: its deterministic signature is the seed of the key that results are sealed to."""

    TYPE: ClassVar[str] = "ResultKey(string purpose)"
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    purpose: str

    def packed(self) -> bytes:
        return _RESULT_KEY.pack(self.TYPE_HASH, keccak256(self.purpose.encode("utf-8")))
