"""Size limit of one transaction: by the chain's rules, by the settings, and by recent refusals of nodes."""

from typing import Final

import attrs

BASE_GAS: Final = 21_000
# EIP-7825: the limit of every transaction, however large the blocks are.
TX_GAS_CAP: Final = 1 << 24
# Nodes accept 128 KiB per transaction.
MAX_TX_BYTES: Final = 120_000
# A transaction with more than this share of the block's gas would have to wait for an empty block.
_BLOCK_SHARE: Final = 2
# The most expensive op alone, an identity with all its evidence, needs less.
_MIN_LOWERED_GAS: Final = 2_000_000
_MIN_LOWERED_BYTES: Final = 40_000
_LOWERED_FOR_S: Final = 600.0
# EIP-7623.
_FLOOR_PER_ZERO: Final = 10
_FLOOR_PER_BYTE: Final = 40


def floor_gas(calldata: bytes) -> int:
    """Return the minimum gas of a transaction with this calldata (EIP-7623)."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _FLOOR_PER_ZERO + (len(calldata) - zeros) * _FLOOR_PER_BYTE


@attrs.frozen(slots=True)
class TxSize:
    """Limits on the gas and bytes of one transaction."""

    gas: int
    bytes: int = MAX_TX_BYTES


@attrs.define(slots=True)
class TxSizeLimits:
    """Current limits.

    A refusal for size halves the limit for ten minutes, so that an unknown limit costs one transaction and not every
    one.
    """

    block_gas_limit: int = 0
    _gas: int = TX_GAS_CAP
    _bytes: int = MAX_TX_BYTES
    _until: float = 0.0

    def at(self, now: float) -> TxSize:
        if now >= self._until:
            self._gas, self._bytes = TX_GAS_CAP, MAX_TX_BYTES
        return TxSize(min(self.block_gas_limit // _BLOCK_SHARE, self._gas), self._bytes)

    def too_much_gas(self, gas: int, now: float) -> None:
        self._gas = min(self._gas, max(gas // 2, _MIN_LOWERED_GAS))
        self._until = now + _LOWERED_FOR_S

    def too_many_bytes(self, size: int, now: float) -> None:
        self._bytes = min(self._bytes, max(size // 2, _MIN_LOWERED_BYTES))
        self._until = now + _LOWERED_FOR_S
