"""Check PostgreSQL: version, connections, clock, replication, migrations, and the relayer's process."""

import re
import time
from collections.abc import AsyncIterator
from typing import Final

from common.checks import CheckRow, fact, right, wrong
from common.scalars import hex_of
from coordinatord.chain.relayer import transactions_sql
from coordinatord.run.config import Config
from coordinatord.run.descriptors import database_connections
from coordinatord.storage.database.connections import Connection, ServerFacts, open_database, read_server_facts
from coordinatord.storage.database.locks import find_role_holder
from coordinatord.storage.database.migration import SchemaState, compare_schema, server_version_error
from coordinatord.storage.database.replication_sql import Replication, read_replication
from coordinatord.storage.database.role_connection import relayer_role_name

_CLOCK_TOLERANCE_S: Final = 60.0
_STANDBY_NAMES: Final = re.compile(r"(?i)^\s*(?:(?:first|any)?\s*(\d+)\s*\((.*)\)|(.*))\s*$")


async def database_rows(config: Config) -> AsyncIterator[CheckRow]:
    async with (
        open_database(config.database_url.reveal(), max_size=2) as database,
        database.connection() as connection,
    ):
        server, asked_at = await read_server_facts(connection), time.time()
        yield _server_row(config, server, connection.get_server_version().major)
        ahead = asked_at - server.unix_time
        if abs(ahead) > _CLOCK_TOLERANCE_S:
            yield wrong("clock and database", f"{ahead:+.1f} s", "synchronise both machines' clocks (timedatectl)")
        yield replication_row(await read_replication(connection))
        state = await compare_schema(connection)
        yield _migrations_row(state)
        if state.applied_count and not state.missing_names:
            yield await _relayer_row(config, connection)


def _server_row(config: Config, server: ServerFacts, major: int) -> CheckRow:
    version, max_connections = server.version, server.max_connections
    needed = database_connections(config)
    if (refusal := server_version_error(major)) is not None:
        return wrong("database", f"PostgreSQL {version}", refusal)
    if needed > max_connections:
        remedy = "lower DATABASE_POOL_MAX or raise max_connections"
        detail = f"PostgreSQL {version} accepts {max_connections} connections, but a process needs up to {needed}"
        return wrong("database", detail, remedy)
    enough = f"of which a process uses up to {needed}: enough for {max_connections // needed} processes"
    return right("database", f"PostgreSQL {version}; {max_connections} connections, {enough}")


def replication_row(state: Replication) -> CheckRow:
    if not state.fsync:
        return fact("durability", "fsync is off, so a crash of the machine may destroy the database", "set fsync = on")
    if not state.is_required:
        detail = f"asynchronous, {state.standby_count} standbys, so a failover may lose the last commits"
        return fact("durability", detail, 'see docs/operators/maintenance.md, "Failover"')
    names = f"synchronous_standby_names = {state.standby_names}"
    if state.standby_count == 0:
        remedy = "start the standby, because every commit waits for it"
        return wrong("durability", f"{names}, and no standby is connected", remedy)
    spare = _count_spare_standbys(state)
    if spare < 1:
        detail = f"synchronous, {names}, so a standby that hangs stops the market"
        return fact(
            "durability",
            detail,
            "set synchronous_standby_names to two standbys, of which one must confirm a commit: ANY 1 (a, b)",
        )
    return right("durability", f"synchronous, {names}; {spare} of {state.standby_count} standbys may fail")


def _count_spare_standbys(state: Replication) -> int:
    """Return the number of connected standbys beyond the number that every commit waits for."""
    found = _STANDBY_NAMES.match(state.standby_names)
    if found is None:
        return 0
    names = [name.strip() for name in (found[2] or found[3] or "").split(",") if name.strip()]
    named = state.standby_count if "*" in names else min(len(names), state.standby_count)
    return named - int(found[1] or 1)


def _migrations_row(state: SchemaState) -> CheckRow:
    if state.refusal is not None:
        found, _, remedy = state.refusal.partition(": ")
        return wrong("migrations", found, remedy)
    if state.unknown_names:
        names = ", ".join(state.unknown_names)
        return fact("migrations", f"the database is newer, and this release may run on it: {names}")
    if not state.applied_count:
        return fact("migrations", "the database is empty", "`coordinatord migrate` or a start creates the tables")
    if state.missing_names:
        names = ", ".join(state.missing_names)
        return fact("migrations", "the database is older", f"`coordinatord migrate` or a start applies {names}")
    return right("migrations", f"all {state.applied_count} are applied")


async def _relayer_row(config: Config, connection: Connection) -> CheckRow:
    """Return a row with the process that relays for the account that signed last."""
    for use in await transactions_sql.read_account_usages(connection, config.addresses.chain_id):
        process = await find_role_holder(connection, relayer_role_name(config.addresses.chain_id, use.account))
        if process is None:
            return fact("relayer process", f"no process currently relays with {hex_of(use.account)}")
        return right("relayer process", f"{process} relays with {hex_of(use.account)}")
    return fact("relayer process", "no transaction was relayed yet")
