"""Limit the size of one transaction by the chain's rules, by what nodes usually accept, and by their recent
refusals."""

from typing import Final

import attrs

BASE_GAS: Final = 21_000
# EIP-7825: the limit of every transaction, however large the blocks are.
TX_GAS_CAP: Final = 1 << 24
# Nodes accept 128 KiB per transaction.
MAX_TX_BYTES: Final = 120_000
# A transaction may use the block's gas limit divided by this. A larger transaction would have to wait for an empty
# block.
_BLOCK_GAS_DIVISOR: Final = 2
# Limits are never lowered below these values. The most expensive op alone, an identity with all its evidence, needs
# less.
_MIN_LOWERED_GAS: Final = 2_000_000
_MIN_LOWERED_BYTES: Final = 40_000
_LOWERED_LIMIT_DURATION_S: Final = 600.0
# Lowest price of calldata in gas (EIP-7623).
_FLOOR_GAS_PER_ZERO_BYTE: Final = 10
_FLOOR_GAS_PER_NONZERO_BYTE: Final = 40


def floor_gas(calldata: bytes) -> int:
    """Return the minimum gas of a transaction with this calldata (EIP-7623)."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _FLOOR_GAS_PER_ZERO_BYTE + (len(calldata) - zeros) * _FLOOR_GAS_PER_NONZERO_BYTE


@attrs.frozen(slots=True)
class TxLimits:
    """Limits on the gas and bytes of one transaction."""

    gas: int
    bytes: int = MAX_TX_BYTES


@attrs.define(slots=True)
class AdaptiveTxLimits:
    """Limits on an account's next transactions. After a node refuses a transaction for its size, the limit drops to
    half of that size for ten minutes, so that an unknown limit of the nodes costs one transaction instead of every
    large transaction."""

    block_gas_limit: int = 0
    _max_gas: int = TX_GAS_CAP
    _max_bytes: int = MAX_TX_BYTES
    _lowered_until: float = 0.0

    def limits_at(self, now: float) -> TxLimits:
        if now >= self._lowered_until:
            self._max_gas, self._max_bytes = TX_GAS_CAP, MAX_TX_BYTES
        return TxLimits(min(self.block_gas_limit // _BLOCK_GAS_DIVISOR, self._max_gas), self._max_bytes)

    def lower_gas_limit(self, gas: int, now: float) -> None:
        self._max_gas = min(self._max_gas, max(gas // 2, _MIN_LOWERED_GAS))
        self._lowered_until = now + _LOWERED_LIMIT_DURATION_S

    def lower_byte_limit(self, size: int, now: float) -> None:
        self._max_bytes = min(self._max_bytes, max(size // 2, _MIN_LOWERED_BYTES))
        self._lowered_until = now + _LOWERED_LIMIT_DURATION_S
