"""Epoch of a database: which cluster it is on, and how often that was promoted. A promotion raises the timeline."""

from typing import Final

import attrs

# SQL for both parts on a primary. Every role may read them.
SYSTEM_IDENTIFIER: Final = "(select system_identifier from pg_control_system())"
TIMELINE: Final = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint"


@attrs.frozen(slots=True)
class Epoch:
    """A database cluster, and how often it was promoted or recovered."""

    system_identifier: int
    timeline: int
