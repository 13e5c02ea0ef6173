"""Encryption of finished items in the journal. Outputs are never on the disk in the clear."""

from typing import Self

import attrs
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from common.box import SecretKey
from common.bundle import ItemResult, item_json, read_item
from common.canonical_json import canonical
from common.key_derivation import hkdf_sha256
from common.refusal import Refused
from common.strict_json import parse

_LABEL = b"svc-journal-item-v1"


@attrs.frozen(slots=True)
class ItemSeal:
    """Encrypts the items of one job, with a key derived from the provider's box key."""

    _box: SecretBox

    @classmethod
    def of(cls, box: SecretKey, job_id: bytes) -> Self:
        return cls(SecretBox(hkdf_sha256(box.raw, _LABEL + job_id)))

    def seal(self, result: ItemResult) -> bytes:
        return bytes(self._box.encrypt(canonical(item_json(result))))

    def open(self, sealed: bytes) -> ItemResult | None:
        """Decrypt an entry. Return None if it was made with another box key. The item must then run again."""
        try:
            return read_item(parse(self._box.decrypt(sealed)))
        except (CryptoError, Refused):
            return None
