"""Fields of the escrow's request bodies that read as nothing elsewhere does."""

import attrs

from common import box
from common.box import PublicKey
from common.refusal import Refused
from common.scalars import read_hex
from common.secp256k1 import SIGNATURE_LENGTH
from coordinatord.fields import BareHex, Schema


@attrs.frozen(slots=True)
class SealingKey:
    """An X25519 public key without 0x. A low-order point is refused: everyone could read what is sealed to it."""

    def read(self, value: object, param: str) -> PublicKey:
        try:
            return PublicKey(BareHex(box.KEY_BYTES).read(value, param))
        except Refused as refusal:
            raise Refused(refusal.message, param) from None

    def schema(self) -> Schema:
        return BareHex(box.KEY_BYTES).schema()


@attrs.frozen(slots=True)
class AnySignature:
    """A signature, or nothing for a malformed one: that is answered as a signature of the wrong wallet."""

    def read(self, value: object, param: str) -> bytes:
        try:
            return read_hex(value, SIGNATURE_LENGTH, param)
        except Refused:
            return b""

    def schema(self) -> Schema:
        return {"type": "string"}
