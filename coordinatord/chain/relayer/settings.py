"""Settings of the relayer."""

from typing import Final

import attrs

from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling

# Longer than the interval of rebroadcasts.
MINED_WITHIN_S: Final = 15.0


@attrs.frozen(slots=True, kw_only=True)
class RelayerSettings:
    """Settings of one account.

    `reserve_gas`: with funds for less gas than this, only exits and cancels are relayed. Suffices for a few hundred
    exits.

    `coalesce_max`: limit of ops in one transaction.

    `cancel_reserve_gas`: with funds for less gas than this, only exits are relayed.

    `fee_ceiling`: limit of offered fees.

    `max_in_flight`: limit of signed transactions that are not mined. Nodes drop transactions far ahead of the chain's
    nonce.

    `keeping_up`: seconds without a mined transaction after which posts of batches are held back. Much shorter than
    callers wait for a receipt, and long enough to fill any block.

    `mined_within`: seconds that the next transaction may stay with a node before a higher fee is offered.

    `replacements_only`: follow the account and sign nothing but replacements.
    """

    queue_timeout_ms: int
    block_time_ms: int
    coalesce_max: int = 64
    reserve_gas: int = 30_000_000
    cancel_reserve_gas: int = 10_000_000
    fee_ceiling: FeeCeiling = NO_CEILING
    max_in_flight: int = 256
    keeping_up: float = 5.0
    mined_within: float = MINED_WITHIN_S
    replacements_only: bool = False

    @property
    def busy_poll(self) -> float:
        """Seconds between looks at the head while transactions are pending: a fraction of the block time."""
        return min(max(self.block_time_ms / 40_000, 0.01), 0.25)

    @property
    def idle_poll(self) -> float:
        return min(max(self.block_time_ms / 1000, 0.05), 2.0)
