"""Settings of the relayer."""

from typing import Final

import attrs

from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling
from coordinatord.chain.relayer.tx_size import TX_GAS_CAP

MINED_WITHIN_S: Final = 15.0  # longer than until a node is reminded by the same bytes


@attrs.frozen(slots=True, kw_only=True)
class RelayerSettings:
    """`reserve_gas`: with funds for less gas than this, only exits and cancels are relayed; enough for a few hundred.
    `cancel_reserve_gas`: with less than this, exits alone.
    `max_tx_gas`: what one transaction may use at most. `fee_ceiling`: what is never offered more than.
    `max_in_flight`: transactions signed and not mined at most; nodes drop what is far ahead of the chain's nonce.
    `keeping_up`: seconds that the chain may take for a transaction until posts of batches are held back: far less than
    callers wait for a receipt, and enough to fill any block.
    `mined_within`: seconds that the transaction whose turn it is may lie with a node until more is offered for it.
    `chains`: ops are signed on top of undecided ones of their job, and do not wait for those to be mined.
    `former`: the account is followed until nothing of it is pending, and signs nothing but replacements."""

    coalesce_max: int
    queue_timeout_ms: int
    block_time_ms: int
    reserve_gas: int = 30_000_000
    cancel_reserve_gas: int = 10_000_000
    max_tx_gas: int = TX_GAS_CAP
    fee_ceiling: FeeCeiling = NO_CEILING
    max_in_flight: int = 256
    keeping_up: float = 5.0
    mined_within: float = MINED_WITHIN_S
    chains: bool = True
    former: bool = False

    @property
    def busy_poll(self) -> float:
        """Seconds between looks at the head while something is pending: a fraction of the block time."""
        return min(max(self.block_time_ms / 40_000, 0.01), 0.25)

    @property
    def idle_poll(self) -> float:
        return min(max(self.block_time_ms / 1000, 0.05), 2.0)
