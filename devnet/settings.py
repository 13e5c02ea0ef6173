"""What a person may choose about the local world."""

from pathlib import Path
from typing import Final

import attrs

from devnet.ports import Port


@attrs.frozen
class Settings:
    state_dir: Path = Path(".devnet")
    block_time: int | None = 1  # seconds; None: a block for each transaction
    rpc_port: int = 8545
    database_port: int = 5440  # beside a PostgreSQL of the system on its usual port
    pin_store_port: int = 8480
    api_port: int = 8402  # the coordinator's default
    metrics_port: int = 9402
    provider_metrics_port: int = 9403

    @property
    def listening(self) -> tuple[Port, ...]:
        """The ports that this world opens itself."""
        return (
            Port(self.rpc_port, "chain", "--rpc-port"),
            Port(self.database_port, "database", "--database-port"),
            Port(self.pin_store_port, "pin store", "--pin-store-port"),
            Port(self.api_port, "coordinator", "--api-port"),
            Port(self.metrics_port, "coordinator's metrics", "--metrics-port"),
            Port(self.provider_metrics_port, "provider's metrics", "--provider-metrics-port"),
        )


DEFAULTS: Final = Settings()
