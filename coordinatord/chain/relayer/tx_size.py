"""How large one transaction may be: by the chain's rules, by the settings, and by what nodes refused of late."""

from typing import Final

import attrs

BASE_GAS: Final = 21_000
TX_GAS_CAP: Final = 1 << 24  # EIP-7825: no transaction may offer more, however large the blocks are
MOST_BYTES: Final = 120_000  # nodes take 128 KiB for a transaction
# Of the block's gas for one transaction: more would wait for an empty block.
_BLOCK_SHARE: Final = 2
_LEAST_GAS: Final = 2_000_000  # the dearest op alone, an identity with all its evidence, needs less
_LEAST_BYTES: Final = 40_000
_LOWERED_FOR: Final = 600.0  # seconds
_FLOOR_PER_ZERO: Final = 10  # EIP-7623
_FLOOR_PER_BYTE: Final = 40


def floor_gas(calldata: bytes) -> int:
    """Return the least gas that a transaction with this calldata must offer, whatever it does (EIP-7623)."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _FLOOR_PER_ZERO + (len(calldata) - zeros) * _FLOOR_PER_BYTE


@attrs.frozen(slots=True)
class TxSize:
    """Most gas and bytes that one transaction may hold."""

    gas: int
    bytes: int = MOST_BYTES


@attrs.define(slots=True)
class TxRoom:
    """`setting`: what the operator allows. A refusal for size halves the room for ten minutes, so that a limit that
    nobody knew of costs one transaction and not every one."""

    setting: int = TX_GAS_CAP
    block_gas_limit: int = 0
    _gas: int = TX_GAS_CAP
    _bytes: int = MOST_BYTES
    _until: float = 0.0

    def at(self, now: float) -> TxSize:
        if now >= self._until:
            self._gas, self._bytes = TX_GAS_CAP, MOST_BYTES
        return TxSize(min(self.block_gas_limit // _BLOCK_SHARE, TX_GAS_CAP, self.setting, self._gas), self._bytes)

    def too_much_gas(self, gas: int, now: float) -> None:
        self._gas = min(self._gas, max(gas // 2, _LEAST_GAS))
        self._until = now + _LOWERED_FOR

    def too_many_bytes(self, size: int, now: float) -> None:
        self._bytes = min(self._bytes, max(size // 2, _LEAST_BYTES))
        self._until = now + _LOWERED_FOR
