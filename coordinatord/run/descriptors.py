"""File descriptors: how many this process may have, and how many connections of callers that leaves room for."""

import resource
import sys
from contextlib import suppress
from typing import Final

from coordinatord.run.config import Config

DATABASE_CONNECTIONS_BESIDE_POOL: Final = 16  # of reads that requests share, of notices and of roles
_NODE_CONNECTIONS: Final = 40
_STORE_CONNECTIONS: Final = 64
_WEBHOOK_CONNECTIONS: Final = 512
_ANYTHING_ELSE: Final = 128  # listening sockets, the operators' port, the event loop, threads that look names up
_MIN_CONNECTIONS: Final = 16  # the least value of CONNECTIONS_MAX


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
    databases = 1 + len(config.database_replica_urls)
    return (
        databases * config.database_pool_max
        + DATABASE_CONNECTIONS_BESIDE_POOL
        + len(config.node_urls) * _NODE_CONNECTIONS
        + _STORE_CONNECTIONS
        + (_WEBHOOK_CONNECTIONS if config.webhooks_key else 0)
        + _ANYTHING_ELSE
    )
