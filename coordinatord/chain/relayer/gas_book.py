"""Gas that ops take: a limit to simulate one with, and its part of a transaction that carries many.

An estimate costs a node many runs of the call, a call with a limit costs one and proves as much: what passes under that
limit needs no more. So estimates are asked for only where nothing is known, or where the limit was refused.

An estimate also holds what the registry wants to see left before it calls the token (`REGISTRY_SLACK`). A transaction
of many ops needs that once, so the estimates of its ops add up to far more than it uses. Receipts tell what was used:

    all ops alike         it is certain whose the gas was: each one's share
    ops of several kinds  only their sum is known: a mix, with how many there were of each kind

How much they have in common, nobody knows. What is taken off for it and was not there is missed once for each op of a
larger transaction, so each op has a 64th of it taken off: a full transaction then misses no more than the first look
that it is given itself.

What the ops of a transaction take together is the least of two bounds: their shares added up, and a mix of the same
kinds as many times as it pays, with shares for what it does not cover. Neither can be too small while ops take what
their like took, in whatever proportions they come. Both rise at once to what was used and fall slowly; a transaction
that starved doubles the shares of its ops and forgets the mixes of their kinds. No share is ever above the estimate, so
that learning can neither starve ops for long nor grow without bound. Until a receipt of many tells, a share is what a
simulation used, where ops ran one after the other, else the estimate.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

# What a new job registry wants to see before it calls the token, with the 1/64 that each of two callers keeps back, and
# a little for the loop. An admin may raise it: estimates tell, and plans go by them where they are higher.
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
# Of a fourteenth, of what receipts show: state differs from op to op, and many of them even that out.
_SHARE_NUMERATOR: Final = 15
_SHARE_DENOMINATOR: Final = 14
_FULL: Final = 64  # ops of a transaction than which few are larger, and none by much
_FALLS_BY: Final = 8  # an eighth of the difference with each transaction
_MANY: Final = 16  # ops from which on what they have in common (the first look at each slot) weighs little
_MIX_FALLS_BY: Final = 2  # its own proportions are never exactly those that it is held against
_MIXES: Final = 4  # kept of the same kinds, the newest ones
_MOST_KINDS: Final = 8  # of one mix, and 64 sets of kinds: beyond, shares will do
_MOST_SETS: Final = 64

Shape: TypeAlias = tuple[bytes, bytes, int]


@attrs.frozen(slots=True)
class OpKind:
    """Ops that count as alike: of one selector and about one size. `on_top`: behind the op that it builds on, in the
    same transaction, where much of what it looks at is warm."""

    shape: Shape
    on_top: bool = False

    @classmethod
    def of(cls, target: bytes, calldata: bytes, *, on_top: bool = False) -> "OpKind":
        return cls(shape_of(target, calldata), on_top)


@attrs.frozen(slots=True)
class _Mix:
    """Gas that ops of several kinds took together, beside their bytes."""

    counts: Mapping[OpKind, int]
    gas: float

    def bound(self, counts: Mapping[OpKind, int], shares: Mapping[OpKind, float]) -> float:
        """What `counts` take at most: this mix some times over, and shares for the rest. The least of these is where
        one kind is covered exactly: in between it only rises or falls."""
        times = [counts[kind] / self.counts[kind] for kind in self.counts]
        return min(
            each * self.gas
            + sum(max(count - each * self.counts[kind], 0) * shares[kind] for kind, count in counts.items())
            for each in times
        )


class GasBook:
    """Grows with what it is taught."""

    def __init__(self) -> None:
        self._execution: dict[Shape, int] = {}  # the dearest estimate
        self._shares: dict[OpKind, int] = {}
        self._guessed: set[OpKind] = set()  # of the shares, those that no receipt of many has told
        self._mixes: dict[frozenset[OpKind], deque[_Mix]] = {}

    def limit(self, target: bytes, calldata: bytes) -> int | None:
        """Gas that will do for the op alone, or None when nothing like it was seen."""
        execution = self._execution.get(shape_of(target, calldata))
        if execution is None:
            return None
        return intrinsic_gas(calldata) + execution * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR

    def learn(self, target: bytes, calldata: bytes, estimate: int) -> None:
        shape = shape_of(target, calldata)
        self._execution[shape] = max(estimate - intrinsic_gas(calldata), self._execution.get(shape, 0))

    def simulated(self, target: bytes, calldata: bytes, used: int) -> None:
        """Gas that a simulation used, before any receipt has told, with nothing warm; a refund may have given back a
        fifth."""
        for on_top in (False, True):
            kind = OpKind.of(target, calldata, on_top=on_top)
            if kind not in self._shares:
                self._shares[kind] = _before_refund(max(used - intrinsic_gas(calldata), 0))
                self._guessed.add(kind)

    def share(self, kind: OpKind, calldata: bytes, alone: int) -> int:
        """Gas that the op adds to a transaction that carries others, beside its bytes. `alone`: enough when it is sent
        by itself."""
        most = max(alone - intrinsic_gas(calldata), 0)
        share = self._shares.get(kind)
        return most if share is None else min(_with_margin(share), most)

    def unused(self, kind: OpKind, calldata: bytes, alone: int) -> int:
        """Gas that the op wants to find beside its share, and leaves: the registry's `tokenGas`, which an admin may
        raise, is most of it, and the first look at what it shares with others."""
        execution = self._execution.get(kind.shape, alone - intrinsic_gas(calldata))
        return max(execution - self._shares.get(kind, execution), 0)

    def together(self, ops: Iterable[tuple[OpKind, int]]) -> int:
        """Gas of the ops of one transaction, each with its share: beside their bytes, what they have in common, and
        what one of them wants to find."""
        counts: Counter[OpKind] = Counter()
        shares: dict[OpKind, float] = {}
        added_up = 0
        for kind, share in ops:
            counts[kind] += 1
            shares[kind] = max(share, shares.get(kind, share))
            added_up += share
        without_margin = {kind: share * _SHARE_DENOMINATOR / _SHARE_NUMERATOR for kind, share in shares.items()}
        bounds = [mix.bound(counts, without_margin) for mix in self._mixes.get(frozenset(counts), ())]
        return min(added_up, _with_margin(int(min(bounds)) + 1)) if bounds else added_up

    def was_used(self, kinds: Sequence[OpKind], execution: int) -> None:
        """Gas of a mined transaction whose ops, of these kinds, all took effect. `execution`: gas that it used beside
        that for its bytes."""
        if not kinds:
            return
        counts = Counter(kinds)
        used = max(execution - (FIRST_LOOK * min(len(kinds), _FULL) // _FULL if len(kinds) > 1 else 0), 0)
        if len(counts) > 1:
            if len(kinds) >= _MANY:
                self._learn_mix(counts, used)
            return
        (kind,) = counts
        share, known = used // len(kinds), self._shares.get(kind)
        if known is None or (kind in self._guessed and len(kinds) >= _MANY):
            self._shares[kind] = share
        elif len(kinds) >= _MANY:
            self._shares[kind] = max(share, known - (known - share) // _FALLS_BY)
        if len(kinds) >= _MANY:
            self._guessed.discard(kind)
        elif known is None:
            self._guessed.add(kind)

    def _learn_mix(self, counts: Mapping[OpKind, int], used: float) -> None:
        shares = {kind: known for kind in counts if (known := self._most_known(kind)) is not None}
        if len(counts) > _MOST_KINDS or len(shares) < len(counts):
            return  # of a kind of which nothing is known a rest could not be bounded
        mixes: Iterable[_Mix] = self._mixes.pop(frozenset(counts), ())
        bounds = [(mix, mix.bound(counts, shares)) for mix in mixes]
        believed = [(mix, bound) for mix, bound in bounds if bound >= used]
        if len(believed) == len(bounds) and bounds:
            least = min(bound for _, bound in bounds)
            used = least - (least - used) / _MIX_FALLS_BY
        kept = deque((mix for mix, _ in believed), maxlen=_MIXES)  # the others were shown to be too small
        kept.append(_Mix(counts, used))
        self._mixes[frozenset(counts)] = kept
        while len(self._mixes) > _MOST_SETS:
            del self._mixes[next(iter(self._mixes))]  # the one that was taught least lately

    def _most_known(self, kind: OpKind) -> float | None:
        known = [gas for gas in (self._shares.get(kind), self._execution.get(kind.shape)) if gas is not None]
        return min(known, default=None)

    def starved(self, kinds: Sequence[OpKind]) -> None:
        """A transaction with these ops ran out of gas: too little was known of them."""
        self._mixes.pop(frozenset(kinds), None)
        for kind in set(kinds):
            share = self._shares.get(kind)
            if share is not None:
                self._shares[kind] = 2 * share


def _with_margin(share: int) -> int:
    return share * _SHARE_NUMERATOR // _SHARE_DENOMINATOR


def enough_gas(calldata: bytes, used: int) -> int:
    """Limit for an op of a new kind of which a simulation tells no more than what it used."""
    return intrinsic_gas(calldata) + _before_refund(max(used - intrinsic_gas(calldata), 0)) + REGISTRY_SLACK


def _before_refund(used: int) -> int:
    return used * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR


def shape_of(target: bytes, calldata: bytes) -> Shape:
    return target, calldata[:4], len(calldata).bit_length()


def intrinsic_gas(calldata: bytes) -> int:
    """Gas that a transaction with this calldata costs before it does anything."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _PER_ZERO + (len(calldata) - zeros) * _PER_BYTE


def floor_gas(calldata: bytes) -> int:
    """Least gas that a transaction with this calldata must offer, whatever it does (EIP-7623)."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _FLOOR_PER_ZERO + (len(calldata) - zeros) * _FLOOR_PER_BYTE
