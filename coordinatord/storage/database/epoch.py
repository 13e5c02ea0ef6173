"""Epoch of a database: its cluster and timeline. A promotion of a standby raises the timeline."""

from typing import Final

import attrs

# SQL expressions for both parts of the epoch on a primary. Every PostgreSQL role may read both.
SYSTEM_IDENTIFIER_SQL: Final = "(select system_identifier from pg_control_system())"
TIMELINE_SQL: Final = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint"


@attrs.frozen(slots=True)
class Epoch:
    """Identifier of a database cluster, and its timeline, which each promotion or recovery raises."""

    system_identifier: int
    timeline: int
