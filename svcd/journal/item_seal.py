"""Encrypt the journal's bundle items and tab entries, so that outputs are never on the disk in plaintext."""

from typing import Self

import attrs
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from common.box import SecretKey
from common.bundle import ItemResult, item_result_json, read_item_result
from common.canonical_json import canonical
from common.key_derivation import hkdf_sha256
from common.refusal import Refused
from common.strict_json import parse

_KEY_LABEL = b"svc-journal-item-v1"


@attrs.frozen(slots=True)
class ItemSeal:
    """Encryption of one job's items, with a key derived from the provider's box key."""

    _box: SecretBox

    @classmethod
    def for_job(cls, box: SecretKey, job_id: bytes) -> Self:
        return cls(SecretBox(hkdf_sha256(box.raw, _KEY_LABEL + job_id)))

    def seal(self, result: ItemResult) -> bytes:
        return self.seal_json(item_result_json(result))

    def open(self, sealed: bytes) -> ItemResult | None:
        """Decrypt an item. Return None if the item was encrypted with another box key and must run again."""
        try:
            return read_item_result(self.open_json(sealed))
        except Refused:
            return None

    def seal_json(self, value: object) -> bytes:
        return bytes(self._box.encrypt(canonical(value)))

    def open_json(self, sealed: bytes) -> object:
        """Decrypt an entry. Raise `Refused` for an entry that was encrypted with another box key."""
        try:
            return parse(self._box.decrypt(sealed))
        except CryptoError:
            raise Refused("the entry was encrypted with another box key") from None
