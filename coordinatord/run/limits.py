"""Limits that no operator needs to change. Tests use other values."""

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from coordinatord.chain.relayer.budgets import GasPolicy
    from coordinatord.storage.pins.storage_budgets import StorageBudgets

_MIB: Final = 1 << 20
_DAY_S: Final = 86_400
CONNECTION_BYTES: Final = 64 << 10
"""Approximate memory of one connection."""


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """Limits of one process.

    `body_memory_bytes` and `upload_memory_bytes`: memory of all request bodies and of all uploads. One caller may use
    half of each.

    `body_stall_timeout_s`: longest wait for the next byte of a body or an upload. `body_min_bytes_per_s` and
    `upload_min_bytes_per_s`: lowest average rate.

    `requests_burst`: burst of one caller's requests. None means the requests of 2.5 seconds at REQUESTS_PER_SECOND.

    `connections`, `event_listeners` (event streams and waiting polls): the defaults suit a process with enough
    descriptors and memory. `with_connections` adapts them to the descriptors and memory of the process.

    `journal_blocks`: blocks whose changes can be undone after a reorg.

    `rpc_lag_blocks`: blocks by which a node's head may differ from the other nodes' heads before the node is skipped.

    `unsettled_retention_s`: retention of an inline container after its job was cancelled, failed, expired or never
    posted. `failed_batch_retention_s`: retention of a batch without a result. `endings_retention_s`: retention of the
    transaction that ended a job. After that time, the transaction is read from the chain.

    `gas` and `storage`: budgets. None means the budgets of the settings.
    """

    body_memory_bytes: int = 256 * _MIB
    body_timeout_s: int = 60
    body_min_bytes_per_s: int = 4096
    body_stall_timeout_s: int = 10
    upload_memory_bytes: int = 256 * _MIB
    upload_min_bytes_per_s: int = 16_384
    uploads_per_caller: int = 4
    uploads_per_wallet: int = 4
    requests_burst: int | None = None
    connections: int = 8192
    connections_per_caller: int = 512
    event_listeners: int = 4096
    event_listeners_per_caller: int = 64
    journal_blocks: int = 256
    rpc_lag_blocks: int = 5
    signer_timeout_s: float = 5.0
    startup_timeout_s: float = 60.0
    shutdown_grace_s: float = 30.0
    unsettled_retention_s: int = 2 * _DAY_S
    failed_batch_retention_s: int = 3 * _DAY_S
    endings_retention_s: int = 365 * _DAY_S
    gas: "GasPolicy | None" = None
    storage: "StorageBudgets | None" = None

    def with_connections(self, connections: int) -> "Limits":
        """Return these limits for a process with room for `connections` connections.

        At most half of the connections may be streams and waiting polls, so that requests always find room. The limits
        per caller are at least the defaults.
        """
        return attrs.evolve(
            self,
            connections=connections,
            connections_per_caller=max(connections // 16, self.connections_per_caller),
            event_listeners=connections // 2,
            event_listeners_per_caller=max(connections // 128, self.event_listeners_per_caller),
        )
