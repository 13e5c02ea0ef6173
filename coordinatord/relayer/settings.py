"""What a relayer is told."""

from typing import Self

import attrs

from coordinatord.config import Config


@attrs.frozen(slots=True, kw_only=True)
class RelayerSettings:
    """`reserve_gas`: with funds for less gas than this, posts stop; enough for a few hundred exits.
    `max_in_flight`: transactions signed and not mined at most; nodes drop what is far ahead of the chain's nonce.
    `keeping_up`: seconds that the chain may take for a transaction until posts of batches are held back: far less than
    callers wait for a receipt, and enough to fill any block."""

    coalesce_max: int
    queue_timeout_ms: int
    block_time_ms: int
    reserve_gas: int = 30_000_000
    max_in_flight: int = 256
    keeping_up: float = 5.0

    @classmethod
    def of(cls, config: Config) -> Self:
        return cls(
            coalesce_max=config.relay_coalesce_max,
            queue_timeout_ms=config.relay_queue_timeout_ms,
            block_time_ms=config.block_time_ms,
        )

    @property
    def busy_poll(self) -> float:
        """Seconds between looks at the head while something is pending: a fraction of the block time."""
        return min(max(self.block_time_ms / 40_000, 0.01), 0.25)

    @property
    def idle_poll(self) -> float:
        return min(max(self.block_time_ms / 1000, 0.05), 2.0)
