"""Planned gas of ops: one table by kind, corrected by receipts."""

from typing import Final

import attrs

from coordinatord.chain.relayer.outbox_sql import RelayKind

PLAIN_BYTES: Final = 1024
# The job registry requires this much gas before it calls the token. An admin may raise it, up to a limit.
TOKEN_CALL_GAS: Final = 230_000
MAX_TOKEN_CALL_GAS: Final = 2_100_000
# The floor price of calldata is 40.
_PER_FURTHER_BYTE: Final = 41
# State may make an op more expensive than the table, for example cold slots of many providers.
_MARGIN_NUMERATOR: Final = 5
_MARGIN_DENOMINATOR: Final = 4
# Receipts of smaller relays say little about shares, because the common cost dominates.
_MIN_EXPECTED: Final = 1_000_000
_DECAY_DIVISOR: Final = 8
_MAX_CORRECTION: Final = 4.0


@attrs.frozen(slots=True)
class OpGas:
    """Gas of an op with up to PLAIN_BYTES of calldata, including its bytes.

    `alone` is its cost in a separate transaction, `shared` its cost in a transaction with others. Both are above the
    forge snapshots. `shared` is None for kinds with very variable costs, where each op is estimated.
    """

    alone: int
    shared: int | None = None


GAS: Final[dict[RelayKind, OpGas]] = {
    RelayKind.POST: OpGas(150_000, 65_000),
    RelayKind.CLAIM: OpGas(190_000, 75_000),
    RelayKind.SETTLE: OpGas(125_000, 68_000),
    RelayKind.FAIL: OpGas(90_000, 55_000),
    RelayKind.CANCEL: OpGas(45_000, 24_000),
    RelayKind.RECLAIM: OpGas(90_000, 60_000),
    RelayKind.SET_IDENTITY: OpGas(90_000),
    RelayKind.REQUEST_CAPACITY: OpGas(65_000),
    RelayKind.PUBLISH: OpGas(70_000),
}


def gas_estimate(kind: RelayKind, calldata_bytes: int = 0) -> int:
    """Return the gas of an op alone, which counts against budgets until the receipt arrives."""
    return GAS[kind].alone + _further(calldata_bytes)


def expected_share(kind: RelayKind, calldata_bytes: int) -> int | None:
    """Return the gas of an op within a relay of many, or None if it must be estimated."""
    shared = GAS[kind].shared
    return None if shared is None else shared + _further(calldata_bytes)


def _further(calldata_bytes: int) -> int:
    return _PER_FURTHER_BYTE * max(calldata_bytes - PLAIN_BYTES, 0)


@attrs.define(slots=True)
class PlannedGas:
    """Gas to offer for ops. `correction` scales the table, and is above 1 while receipts show higher costs."""

    correction: float = 1.0
    token_call: int = TOKEN_CALL_GAS

    def limit(self, kind: RelayKind, calldata_bytes: int) -> int | None:
        """Return enough gas for an op alone, or None for a kind that must be estimated."""
        if GAS[kind].shared is None:
            return None
        return gas_estimate(kind, calldata_bytes) + self.token_call

    def share(self, kind: RelayKind, calldata_bytes: int, limit: int) -> int:
        """Return the gas to plan for an op of a relay, at most its `limit` alone."""
        shared = expected_share(kind, calldata_bytes)
        if shared is None:
            return limit
        return min(int(shared * self.correction) * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR, limit)

    def was_estimated(self, kind: RelayKind, calldata_bytes: int, estimate: int) -> None:
        """Learn from an estimate that the token call needs more gas than assumed."""
        if GAS[kind].shared is not None:
            shown = estimate - gas_estimate(kind, calldata_bytes)
            self.token_call = min(max(self.token_call, shown), MAX_TOKEN_CALL_GAS)

    def was_used(self, expected: int, used: int) -> None:
        """Learn from a relay with only successful ops. The correction rises at once and falls slowly."""
        if expected >= _MIN_EXPECTED:
            ratio = used / expected
            self.correction = max(1.0, ratio, self.correction - (self.correction - ratio) / _DECAY_DIVISOR)

    def was_starved(self) -> None:
        """Learn that a relay ran out of gas. Its ops are sent again, alone."""
        self.correction = min(2 * self.correction, _MAX_CORRECTION)
