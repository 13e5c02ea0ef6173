"""How much gas ops of one shape take: a limit to simulate with, and a share of a transaction that carries many.

An estimate costs a node many runs of the call, a call with a limit costs one and proves as much: what passes under
that limit needs no more. So estimates are asked for only where nothing is known, or where the limit was refused.

An estimate also holds what the registry wants to see left before it calls the token (`REGISTRY_SLACK`). A transaction
of many ops needs that once, so the estimates of its ops add up to far more than it uses. Receipts tell what a share
really is: those of transactions whose ops are all alike, because only there is it certain whose the gas was. Until then
the estimate counts. A share rises at once to what was used and falls slowly; a transaction that starved doubles it. It
is never above the estimate, so that learning can neither starve ops for long nor grow without bound.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

# What a new job registry wants to see before it calls the token, with the 1/64 that each of two callers keeps back, and
# a little for the loop. An admin may raise it: estimates tell, and `coalesce` goes by them where they are higher.
REGISTRY_SLACK: Final = 230_000
# The first look at what the calls of a transaction have in common: accounts and slots that are cold once.
FIRST_LOOK: Final = 60_000
BASE_GAS: Final = 21_000
_PER_ZERO: Final = 4
_PER_BYTE: Final = 16
_FLOOR_PER_ZERO: Final = 10  # EIP-7623: what calldata costs at least
_FLOOR_PER_BYTE: Final = 40
_MARGIN_NUMERATOR: Final = 5  # of a quarter: state may make an op dearer than its like
_MARGIN_DENOMINATOR: Final = 4
# Of a sixth, of what receipts show: gas that a refund gave back was needed all the same, and state differs.
_SHARE_NUMERATOR: Final = 7
_SHARE_DENOMINATOR: Final = 6
_FALLS_BY: Final = 8  # an eighth of the difference with each transaction
_MANY: Final = 8  # ops from which on what they share (the first look at each slot) weighs little

Shape: TypeAlias = tuple[bytes, bytes, int]


class GasBook:
    """Grows with what it is taught; ops of one selector and about one size count as alike."""

    def __init__(self) -> None:
        self._execution: dict[Shape, int] = {}  # the dearest estimate
        self._shares: dict[Shape, int] = {}  # what receipts show

    def limit(self, target: bytes, calldata: bytes) -> int | None:
        """Gas that will do for the op alone, or None when nothing like it was seen."""
        execution = self._execution.get(shape_of(target, calldata))
        if execution is None:
            return None
        return intrinsic_gas(calldata) + execution * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR

    def learn(self, target: bytes, calldata: bytes, estimate: int) -> None:
        shape = shape_of(target, calldata)
        execution = max(estimate - intrinsic_gas(calldata), 0)
        self._execution[shape] = max(execution, self._execution.get(shape, 0))

    def share(self, target: bytes, calldata: bytes, alone: int) -> int:
        """Gas that the op adds to a transaction that carries others, beside its bytes. `alone`: enough when it is sent
        by itself."""
        most = max(alone - intrinsic_gas(calldata), 0)
        share = self._shares.get(shape_of(target, calldata))
        return most if share is None else min(share * _SHARE_NUMERATOR // _SHARE_DENOMINATOR, most)

    def was_used(self, shapes: Sequence[Shape], execution: int) -> None:
        """What a mined transaction shows whose ops, of these shapes, all took effect: the gas that it used beside that
        for its bytes."""
        if not shapes or len(set(shapes)) > 1:
            return
        (shape,) = set(shapes)
        used = max(execution - (FIRST_LOOK if len(shapes) > 1 else 0), 0) // len(shapes)
        known = self._shares.get(shape)
        if known is None:
            self._shares[shape] = used
        elif len(shapes) >= _MANY:
            self._shares[shape] = used if used >= known else known - (known - used) // _FALLS_BY

    def starved(self, shapes: Sequence[Shape]) -> None:
        """A transaction with these ops ran out of gas: their shares were too small."""
        for shape in set(shapes):
            share = self._shares.get(shape)
            if share is not None:
                self._shares[shape] = 2 * share


def shape_of(target: bytes, calldata: bytes) -> Shape:
    return target, calldata[:4], len(calldata).bit_length()


def intrinsic_gas(calldata: bytes) -> int:
    """What a transaction with this calldata costs before it does anything."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _PER_ZERO + (len(calldata) - zeros) * _PER_BYTE


def floor_gas(calldata: bytes) -> int:
    """What a transaction with this calldata must offer, whatever it does (EIP-7623)."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _FLOOR_PER_ZERO + (len(calldata) - zeros) * _FLOOR_PER_BYTE
