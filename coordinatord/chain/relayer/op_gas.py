"""Plan the gas of ops from a table by kind, and correct the table by receipts."""

from typing import Final

import attrs

from coordinatord.chain.relayer.outbox_sql import RelayKind

# Bytes of calldata whose gas the table includes.
INCLUDED_CALLDATA_BYTES: Final = 1024
# The job registry requires this much gas before it calls the token. An admin may raise this amount up to
# MAX_TOKEN_CALL_GAS.
TOKEN_CALL_GAS: Final = 230_000
MAX_TOKEN_CALL_GAS: Final = 2_100_000
# Gas for each byte of calldata above INCLUDED_CALLDATA_BYTES, slightly above EIP-7623's floor price of 40 gas for a
# nonzero byte.
_GAS_PER_EXTRA_BYTE: Final = 41
# The chain's state may make an op more expensive than the table says, for example with cold slots of many providers.
_GAS_MARGIN_NUMERATOR: Final = 5
_GAS_MARGIN_DENOMINATOR: Final = 4
# Transactions with less expected gas are not used to correct the table, because the cost common to all ops dominates.
_MIN_EXPECTED_GAS: Final = 1_000_000
_CORRECTION_DECAY_DIVISOR: Final = 8
_MAX_GAS_CORRECTION: Final = 4.0


# Gas of an op with up to INCLUDED_CALLDATA_BYTES of calldata: alone in a transaction, and its share of a transaction
# with other ops. Both are above the forge snapshots. Kinds without a share have very variable costs and are estimated.
GAS_BY_KIND: Final[dict[RelayKind, tuple[int, int | None]]] = {
    RelayKind.POST: (150_000, 65_000),
    RelayKind.CLAIM: (190_000, 75_000),
    RelayKind.SETTLE: (125_000, 68_000),
    RelayKind.FAIL: (90_000, 55_000),
    RelayKind.CANCEL: (45_000, 24_000),
    RelayKind.RECLAIM: (90_000, 60_000),
    RelayKind.SET_IDENTITY: (90_000, None),
    RelayKind.REQUEST_CAPACITY: (65_000, None),
    RelayKind.PUBLISH: (70_000, None),
}


def gas_estimate(kind: RelayKind, calldata_bytes: int = 0) -> int:
    """Return the gas of an op alone, which counts against budgets until the receipt arrives."""
    return GAS_BY_KIND[kind][0] + _extra_bytes_gas(calldata_bytes)


def expected_share(kind: RelayKind, calldata_bytes: int) -> int | None:
    """Return the gas of an op in a transaction of several ops, or None if the gas must be estimated."""
    shared = GAS_BY_KIND[kind][1]
    return None if shared is None else shared + _extra_bytes_gas(calldata_bytes)


def _extra_bytes_gas(calldata_bytes: int) -> int:
    return _GAS_PER_EXTRA_BYTE * max(calldata_bytes - INCLUDED_CALLDATA_BYTES, 0)


@attrs.define(slots=True)
class PlannedGas:
    """Gas to plan for ops. `correction` multiplies the estimates, and is above 1 while receipts show more gas than
    estimated."""

    correction: float = 1.0
    token_call_gas: int = TOKEN_CALL_GAS

    def limit(self, kind: RelayKind, calldata_bytes: int) -> int | None:
        """Return enough gas for an op alone, or None for a kind that must be estimated."""
        return None if GAS_BY_KIND[kind][1] is None else gas_estimate(kind, calldata_bytes) + self.token_call_gas

    def share(self, kind: RelayKind, calldata_bytes: int, limit: int) -> int:
        """Return the gas to plan for an op in a transaction of several ops, at most `limit`, which suffices for the op
        alone."""
        shared = expected_share(kind, calldata_bytes)
        if shared is None:
            return limit
        return min(int(shared * self.correction) * _GAS_MARGIN_NUMERATOR // _GAS_MARGIN_DENOMINATOR, limit)

    def learn_estimate(self, kind: RelayKind, calldata_bytes: int, estimate: int) -> None:
        """Learn from an estimate that the token call needs more gas than assumed."""
        if GAS_BY_KIND[kind][1] is not None:
            call_gas = estimate - gas_estimate(kind, calldata_bytes)
            self.token_call_gas = min(max(self.token_call_gas, call_gas), MAX_TOKEN_CALL_GAS)

    def learn_usage(self, expected: int, used: int) -> None:
        """Learn from a transaction with only successful ops. The correction rises at once and falls slowly."""
        if expected >= _MIN_EXPECTED_GAS:
            ratio = used / expected
            self.correction = max(1.0, ratio, self.correction - (self.correction - ratio) / _CORRECTION_DECAY_DIVISOR)

    def learn_out_of_gas(self) -> None:
        """Learn that a transaction ran out of gas. Its ops are sent again, each alone."""
        self.correction = min(2 * self.correction, _MAX_GAS_CORRECTION)
