"""How much gas ops of one shape have taken: a limit to simulate with.

An estimate costs a node many runs of the call, a call with a limit costs one and proves as much: what passes under
that limit needs no more. So estimates are asked for only where nothing is known, or where the limit was refused.
"""

from typing import Final

_BASE: Final = 21_000
_PER_ZERO: Final = 4
_PER_BYTE: Final = 16
_MARGIN_NUMERATOR: Final = 5  # of a quarter: state may make an op dearer than its like
_MARGIN_DENOMINATOR: Final = 4

_Shape = tuple[bytes, bytes, int]


class GasBook:
    """Grows with what it is taught; ops of one selector and about one size count as alike."""

    def __init__(self) -> None:
        self._execution: dict[_Shape, int] = {}

    def limit(self, target: bytes, calldata: bytes) -> int | None:
        """Gas that will do, or None when nothing like it was seen."""
        execution = self._execution.get(_shape(target, calldata))
        if execution is None:
            return None
        return _intrinsic(calldata) + execution * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR

    def learn(self, target: bytes, calldata: bytes, estimate: int) -> None:
        shape = _shape(target, calldata)
        execution = max(estimate - _intrinsic(calldata), 0)
        self._execution[shape] = max(execution, self._execution.get(shape, 0))


def _shape(target: bytes, calldata: bytes) -> _Shape:
    return target, calldata[:4], len(calldata).bit_length()


def _intrinsic(calldata: bytes) -> int:
    zeros = calldata.count(0)
    return _BASE + zeros * _PER_ZERO + (len(calldata) - zeros) * _PER_BYTE
