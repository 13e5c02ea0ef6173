"""What every kind of escrow can do with the keys that it holds."""

from typing import Protocol

from common.box import PublicKey
from coordinatord.service.escrow.key_material import EscrowKey, open_with_any


class Custody(Protocol):
    def announced(self) -> PublicKey | None:
        """The key that new orders are sealed to; None while there is none yet."""

    async def open(self, seed_wrap: bytes) -> bytearray | None:
        """The seed under a wrap, or None when no key that is held opens it. Whoever gets it wipes it."""

    async def has_lost_keys(self) -> bool:
        """Whether a wrap that does not open may have been sealed to a key of ours that nobody holds any more."""


class StaticCustody:
    """Keys that the operator gave: the first is announced, all of them open, none is ever lost by a restart."""

    def __init__(self, keys: tuple[EscrowKey, ...]) -> None:
        self._keys = keys

    def announced(self) -> PublicKey | None:
        return self._keys[0].public

    async def open(self, seed_wrap: bytes) -> bytearray | None:
        return open_with_any(self._keys, seed_wrap)

    async def has_lost_keys(self) -> bool:
        return False
