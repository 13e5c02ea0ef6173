"""Compute the limit on callers' connections from this process's file descriptors and memory."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from coordinatord.run.config import Config
from coordinatord.run.limits import CONNECTION_BYTES
from coordinatord.storage.database.connections import PREPARED_CONNECTION_COUNT

_ROLE_CONNECTIONS: Final = 4  # database connections of indexer, relayer, reclaimer and janitor
_LISTENER_CONNECTIONS: Final = 1
_CONNECTIONS_OUTSIDE_POOL: Final = PREPARED_CONNECTION_COUNT + _ROLE_CONNECTIONS + _LISTENER_CONNECTIONS
_NODE_CONNECTIONS: Final = 40
_STORE_CONNECTIONS: Final = 160
_WEBHOOK_CONNECTIONS: Final = 512
_OTHER_DESCRIPTORS: Final = 128  # for listening sockets, operators' port, event loop, threads for name lookups
_MIN_CONNECTIONS: Final = 16
_MEMORY_DIVISOR: Final = 4  # connections may use a quarter of the memory
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP_FILE: Final = Path("/proc/self/cgroup")


def database_connections(config: Config) -> int:
    """Return the number of connections to PostgreSQL at the peak."""
    return config.database_pool_max + _CONNECTIONS_OUTSIDE_POOL


def raise_descriptor_limit() -> int:
    """Raise the soft limit of file descriptors to the hard limit. Return the new soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS enforces a lower limit than the hard limit that it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def memory_limit_bytes(cgroup_root: Path = _CGROUP_ROOT, cgroup_file: Path = _OWN_CGROUP_FILE) -> int:
    """Return the memory that this process may use: the machine's memory, or a lower limit of the unit or container."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, IndexError):
        group = cgroup_root / cgroup_file.read_text(encoding="ascii").split("::", 1)[1].strip().lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # the limit is "max", or the folder has no limit
                limits.append(int((folder / "memory.max").read_text(encoding="ascii")))
    return min(limits)


def max_caller_connections(descriptors: int, memory_bytes: int, config: Config) -> int:
    """Return the number of callers' connections for which the process has descriptors and memory."""
    by_descriptors = descriptors - _own_descriptors(config)
    by_memory = memory_bytes // _MEMORY_DIVISOR // CONNECTION_BYTES
    return max(_MIN_CONNECTIONS, min(by_descriptors, by_memory))


def _own_descriptors(config: Config) -> int:
    """Return the peak number of descriptors that the daemon uses, without callers' connections."""
    return (
        database_connections(config)
        + len(config.database_replica_urls) * (config.database_pool_max + PREPARED_CONNECTION_COUNT)
        + len(config.node_urls) * _NODE_CONNECTIONS
        + _STORE_CONNECTIONS
        + (_WEBHOOK_CONNECTIONS if config.webhooks_key else 0)
        + _OTHER_DESCRIPTORS
    )
