"""Settings of the relayer."""

from typing import Final

import attrs

from coordinatord.chain.relayer.coalesce import Rank
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling

# Default of `mined_within_s`. Longer than the interval of rebroadcasts.
MINED_WITHIN_S: Final = 15.0


@attrs.frozen(slots=True, kw_only=True)
class RelayerSettings:
    """Settings of one account."""

    queue_timeout_ms: int
    block_time_ms: int
    # Limit of ops in one transaction.
    coalesce_max: int = 64
    # With funds for less gas than this, only exits (settle, fail, reclaim) and cancels are relayed. Enough for a few
    # hundred exits.
    reserve_gas: int = 30_000_000
    # With funds for less gas than this, only exits are relayed.
    cancel_reserve_gas: int = 10_000_000
    fee_ceiling: FeeCeiling = NO_CEILING
    # Limit of signed transactions that are not mined. Nodes drop transactions far ahead of the chain's nonce.
    max_in_flight: int = 256
    # Seconds for which the transaction with the next nonce may stay unmined before its fee is raised.
    mined_within_s: float = MINED_WITHIN_S
    # True to sign only replacements of pending transactions, and no queued relays.
    replacements_only: bool = False

    def reserves(self, gas_price: int) -> dict[Rank, int]:
        """Return the funds that relays of each rank must leave for more urgent relays. The funds grow with the gas
        price."""
        return {
            Rank.EXIT: 0,
            Rank.CANCEL: self.cancel_reserve_gas * gas_price,
            Rank.OTHER: self.reserve_gas * gas_price,
        }

    @property
    def busy_poll_interval_s(self) -> float:
        """Seconds between reads of the head while transactions are pending: a fraction of the block time."""
        return min(max(self.block_time_ms / 40_000, 0.01), 0.25)

    @property
    def idle_poll_interval_s(self) -> float:
        return min(max(self.block_time_ms / 1000, 0.05), 2.0)
