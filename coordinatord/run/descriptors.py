"""File descriptors: how many this process may have, and how many connections of callers that leaves room for."""

import resource
import sys
from contextlib import suppress
from typing import Final

from coordinatord.run.config import Config
from coordinatord.storage.database.connections import PREPARED_CONNECTIONS

_ROLES: Final = 4  # indexer, relayer, reclaimer, janitor
_LISTENING: Final = 1
_BESIDE_POOL: Final = PREPARED_CONNECTIONS + _ROLES + _LISTENING
_NODE_CONNECTIONS: Final = 40
_STORE_CONNECTIONS: Final = 160
_WEBHOOK_CONNECTIONS: Final = 512
_ANYTHING_ELSE: Final = 128  # listening sockets, the operators' port, the event loop, threads that look names up
_MIN_CONNECTIONS: Final = 16  # the least value of CONNECTIONS_MAX


def database_connections(config: Config) -> int:
    """Connections to PostgreSQL at the peak. Each former relayer account adds one for its role."""
    return config.database_pool_max + _BESIDE_POOL + len(config.former_relayer_keys)


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and return the limit that now holds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports no hard limit, and has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int, config: Config) -> int:
    """CONNECTIONS_MAX, or as many connections as `limit` descriptors leave room for."""
    return max(_MIN_CONNECTIONS, min(config.connections_max, limit - _own_descriptors(config)))


def _own_descriptors(config: Config) -> int:
    """Descriptors that the daemon needs itself when it is busiest."""
    return (
        database_connections(config)
        + len(config.database_replica_urls) * (config.database_pool_max + PREPARED_CONNECTIONS)
        + len(config.node_urls) * _NODE_CONNECTIONS
        + _STORE_CONNECTIONS
        + (_WEBHOOK_CONNECTIONS if config.webhooks_key else 0)
        + _ANYTHING_ELSE
    )
