"""Checks of PostgreSQL: version, connections, clock, replication, migrations, and the role holder."""

import re
import time
from collections.abc import AsyncIterator
from typing import Final

from common.checks import CheckRow, fact, right, wrong
from common.scalars import hex_of
from coordinatord.chain.relayer import transactions_sql
from coordinatord.run.config import Config
from coordinatord.run.descriptors import database_connections
from coordinatord.storage.database.connections import Connection, ServerFacts, open_database, server_facts
from coordinatord.storage.database.locks import holder
from coordinatord.storage.database.migration import SchemaState, compare, server_refusal
from coordinatord.storage.database.replication_sql import Replication, read_replication
from coordinatord.storage.database.role_connection import role_of

_CLOCK_TOLERANCE_S: Final = 60.0
_STANDBY_NAMES: Final = re.compile(r"(?i)^\s*(?:(?:first|any)?\s*(\d+)\s*\((.*)\)|(.*))\s*$")


async def database_rows(config: Config) -> AsyncIterator[CheckRow]:
    async with (
        open_database(config.database_url.reveal(), smallest=1, largest=2) as database,
        database.connection() as connection,
    ):
        server, asked_at = await server_facts(connection), time.time()
        yield _server(config, server, connection.get_server_version().major)
        ahead = asked_at - server.clock
        if abs(ahead) > _CLOCK_TOLERANCE_S:
            yield wrong("clock and database", f"{ahead:+.1f} s", "synchronise both machines' clocks (timedatectl)")
        yield replication_row(await read_replication(connection))
        state = await compare(connection)
        yield _migrations(state)
        if state.applied and not state.missing:
            yield await _relayer(config, connection)


def _server(config: Config, server: ServerFacts, major: int) -> CheckRow:
    version, max_connections = server.version, server.max_connections
    needed = database_connections(config)
    if (refusal := server_refusal(major)) is not None:
        return wrong("database", f"PostgreSQL {version}", refusal)
    if needed > max_connections:
        remedy = "lower DATABASE_POOL_MAX or raise max_connections"
        detail = f"PostgreSQL {version} takes {max_connections} connections, a process up to {needed}"
        return wrong("database", detail, remedy)
    enough = f"of which a process takes up to {needed}: enough for {max_connections // needed}"
    return right("database", f"PostgreSQL {version}; {max_connections} connections, {enough}")


def replication_row(state: Replication) -> CheckRow:
    if not state.fsync:
        return fact("durability", "fsync is off, so a crash of the machine may destroy the database", "set fsync = on")
    if not state.is_required:
        detail = f"asynchronous, {state.standbys} standbys, so a failover may lose the last commits"
        return fact("durability", detail, 'see docs/operators/maintenance.md, "Failover"')
    names = f"synchronous_standby_names = {state.standby_names}"
    if state.standbys == 0:
        return wrong("durability", f"{names}, and no standby is connected", "every commit waits: start the standby")
    spare = _spare_standbys(state)
    if spare < 1:
        detail = f"synchronous, {names}, so a standby that hangs stops the market"
        return fact("durability", detail, "name two of which one suffices: ANY 1 (a, b)")
    return right("durability", f"synchronous, {names}; {spare} of {state.standbys} standbys may fail")


def _spare_standbys(state: Replication) -> int:
    """Return the number of connected standbys beyond the number that every commit waits for."""
    found = _STANDBY_NAMES.match(state.standby_names)
    if found is None:
        return 0
    names = [name.strip() for name in (found[2] or found[3] or "").split(",") if name.strip()]
    named = state.standbys if "*" in names else min(len(names), state.standbys)
    return named - int(found[1] or 1)


def _migrations(state: SchemaState) -> CheckRow:
    if state.refusal is not None:
        found, _, remedy = state.refusal.partition(": ")
        return wrong("migrations", found, remedy)
    if state.unknown:
        return fact("migrations", f"newer, and this release may run: {', '.join(state.unknown)}")
    if not state.applied:
        missing = len(state.missing)
        return fact("migrations", "the database is empty", f"`coordinatord migrate` or a start applies {missing}")
    if state.missing:
        names = ", ".join(state.missing)
        return fact("migrations", "older", f"`coordinatord migrate` or a start applies {names}")
    return right("migrations", f"all {state.applied} are applied")


async def _relayer(config: Config, connection: Connection) -> CheckRow:
    """Check the role of the account that signed last."""
    for use in await transactions_sql.account_uses(connection, config.addresses.chain_id):
        process = await holder(connection, role_of(config.addresses.chain_id, use.account))
        if process is None:
            return fact("relayer process", f"no process relays with {hex_of(use.account)} now")
        return right("relayer process", f"{process} relays with {hex_of(use.account)}")
    return fact("relayer process", "nothing was relayed yet")
