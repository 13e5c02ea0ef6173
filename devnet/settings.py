"""Settings of the local world that a person may choose."""

import secrets
from pathlib import Path
from typing import Final

import attrs

from coordinatord.chain.relayer.fees import DEVNET_CHAIN_IDS
from devnet.ports import ANY_ADDRESS, WantedPort

# Of each model, of the demo provider. A job holds one for two or three blocks, from its claim to its settle: with so
# many, a batch of 1,000 lines ends within a minute.
SLOTS: Final = 96


@attrs.frozen
class DevnetSettings:
    """A port that is None is the service's usual one or, where that is taken, a free one."""

    state_dir: Path = Path(".devnet")
    chain_id: int | None = None  # None: chosen at random, so that two devnets can be told apart
    block_time: int | None = 1  # seconds; None: a block for each transaction
    rpc_port: int | None = None
    database_port: int | None = None
    pin_store_port: int | None = None
    gateway_port: int | None = None
    api_port: int | None = None
    metrics_port: int | None = None
    provider_metrics_port: int | None = None
    slots: int = SLOTS
    ahead: bool = False  # the demo provider runs jobs ahead of their claims
    model: bool = False  # a language model answers texts and embeddings; otherwise the stand-in repeats its input

    @property
    def listening(self) -> tuple[WantedPort, ...]:
        """The ports that this world opens itself."""
        return (
            WantedPort("chain", RPC, 8545, self.rpc_port),
            WantedPort("database", DATABASE, 5440, self.database_port),  # beside a PostgreSQL of the system
            WantedPort("pin store", PIN_STORE, 8480, self.pin_store_port),
            WantedPort("gateway", GATEWAY, 8481, self.gateway_port),
            WantedPort("coordinator", API, 8402, self.api_port, ANY_ADDRESS),
            WantedPort("coordinator's metrics", METRICS, 9402, self.metrics_port),
            WantedPort("provider's metrics", PROVIDER_METRICS, 9403, self.provider_metrics_port),
        )


def random_chain_id() -> int:
    return secrets.choice(DEVNET_CHAIN_IDS)


RPC: Final = "--rpc-port"
DATABASE: Final = "--database-port"
PIN_STORE: Final = "--pin-store-port"
GATEWAY: Final = "--gateway-port"
API: Final = "--api-port"
METRICS: Final = "--metrics-port"
PROVIDER_METRICS: Final = "--provider-metrics-port"

DEFAULTS: Final = DevnetSettings()
