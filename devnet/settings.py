"""Settings of the devnet."""

import secrets
from pathlib import Path
from typing import Final

import attrs

from coordinatord.chain.relayer.fees import DEVNET_CHAIN_IDS
from devnet.ports import ANY_ADDRESS, WantedPort

# Jobs that the provider runs at once per model. A job takes two or three blocks of a second, so 96 at once finish 1,000
# jobs in under a minute.
DEFAULT_SLOTS: Final = 96


@attrs.frozen
class DevnetSettings:
    """Settings of one run. A port of None means the service's usual port, or a free port if the usual one is in use."""

    state_dir: Path = Path(".devnet")
    chain_id: int | None = None  # None: a random id, so that two devnets have different ids
    block_time: int | None = 1  # seconds; None: mine each transaction at once
    rpc_port: int | None = None
    database_port: int | None = None
    pin_store_port: int | None = None
    gateway_port: int | None = None
    api_port: int | None = None
    metrics_port: int | None = None
    provider_metrics_port: int | None = None
    slots: int = DEFAULT_SLOTS
    ahead: bool = False  # the demo provider runs jobs before their claims are mined
    model: bool = False  # run text and embedding jobs on a language model

    @property
    def wanted_ports(self) -> tuple[WantedPort, ...]:
        """Ports on which the services listen."""
        return (
            WantedPort("chain", RPC_FLAG, 8545, self.rpc_port),
            # Not 5432, which the system's PostgreSQL may use.
            WantedPort("database", DATABASE_FLAG, 5440, self.database_port),
            WantedPort("pin store", PIN_STORE_FLAG, 8480, self.pin_store_port),
            WantedPort("gateway", GATEWAY_FLAG, 8481, self.gateway_port),
            WantedPort("coordinator", API_FLAG, 8402, self.api_port, ANY_ADDRESS),
            WantedPort("coordinator's metrics", METRICS_FLAG, 9402, self.metrics_port),
            WantedPort("provider's metrics", PROVIDER_METRICS_FLAG, 9403, self.provider_metrics_port),
        )


def random_chain_id() -> int:
    return secrets.choice(DEVNET_CHAIN_IDS)


RPC_FLAG: Final = "--rpc-port"
DATABASE_FLAG: Final = "--database-port"
PIN_STORE_FLAG: Final = "--pin-store-port"
GATEWAY_FLAG: Final = "--gateway-port"
API_FLAG: Final = "--api-port"
METRICS_FLAG: Final = "--metrics-port"
PROVIDER_METRICS_FLAG: Final = "--provider-metrics-port"

DEFAULTS: Final = DevnetSettings()
