"""Database faults: conflicts, a full disk, no free connections, no writes, no login, a crash.

Triggers that read a table raise the server's errors for conflicts and a full disk. A serialization failure comes at
commit, and a full disk comes at the write.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final

import anyio
import asyncpg

from devnet.errors import DevnetError
from tests.soak.audits import execute_apart
from tests.soak.ground import COORDINATORS_PASSWORD, COORDINATORS_ROLE, Ground

_CONFLICTS, _FULL = "conflicts", "disk full"
_SHARES: Final = {_CONFLICTS: (0.05, 0.3), _FULL: (0.5, 1.0)}  # of written rows
_WRITTEN: Final = ("relays", "relay_txs", "sessions", "objects", "files", "batches", "batch_lines", "index_position")
_LOCKED: Final = ("relays", "jobs", "sessions", "leases", "objects")
_TROUBLE: Final = (
    "create table if not exists soak_trouble (kind text primary key, share float8 not null)",
    """create or replace function refuse_write() returns trigger language plpgsql as $$
declare
    share_refused float8;
begin
    select share into share_refused from soak_trouble where kind = tg_argv[0];
    if random() < share_refused then
        raise exception '% (the soak says so)', tg_argv[0] using errcode = tg_argv[1];
    end if;
    return null;
end $$""",
)
_TRIGGERS: Final = (
    "create trigger refuse_write after insert or update on {table} for each statement"
    " execute function refuse_write('disk full', '53100')",
    "create constraint trigger refuse_commit after insert or update on {table} deferrable initially deferred"
    " for each row execute function refuse_write('conflicts', '40001')",
)
_WITHOUT: Final = ("drop trigger if exists refuse_write on {table}", "drop trigger if exists refuse_commit on {table}")
_STARTS: Final = 30  # attempts, at least a tenth of a second apart, because the crashed server's memory must be freed
_RELOAD: Final = "select pg_reload_conf()"
_TERMINATE: Final = (
    f"select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = '{COORDINATORS_ROLE}'"  # noqa: S608 - constants
)
_CONNECTIONS_PER_STEP: Final = 25
_MAX_CONNECTIONS: Final = 250  # above the server's limit


async def install_trouble(database_url: str) -> None:
    triggers = [trigger.format(table=table) for table in _WRITTEN for trigger in _TRIGGERS]
    await execute_apart(database_url, [*_TROUBLE, *triggers])


async def remove_trouble(database_url: str) -> None:
    """Remove the triggers before the checks. A table with deferred triggers can't be truncated and rebuilt."""
    await execute_apart(database_url, [without.format(table=table) for table in _WRITTEN for without in _WITHOUT])


async def conflicts(ground: Ground, random: Random, seconds: float) -> None:
    """Fail some transactions at commit with a serialization failure, which is retryable."""
    await _refusing(ground, _CONFLICTS, random, seconds)


async def disk_full(ground: Ground, random: Random, seconds: float) -> None:
    """Reject most writes, as on a full disk."""
    await _refusing(ground, _FULL, random, seconds)


async def _refusing(ground: Ground, kind: str, random: Random, seconds: float) -> None:
    async with _connected(ground) as connection:
        await connection.execute("insert into soak_trouble values ($1, $2)", kind, random.uniform(*_SHARES[kind]))
    try:
        await anyio.sleep(seconds)
    finally:
        with anyio.CancelScope(shield=True):
            async with _connected(ground) as connection:
                await connection.execute("delete from soak_trouble where kind = $1", kind)


async def pool_exhausted(ground: Ground, random: Random, seconds: float) -> None:
    """Lock a table that all processes need, until every connection of every pool waits for it."""
    async with _connected(ground) as connection, connection.transaction():
        await connection.execute(f"lock table {random.choice(_LOCKED)} in access exclusive mode")
        await anyio.sleep(seconds)


async def connections_exhausted(ground: Ground, _random: Random, seconds: float) -> None:
    """Use up the server's connections."""
    taken: list[asyncpg.Connection[asyncpg.Record]] = []

    async def take() -> None:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            taken.append(await asyncpg.connect(ground.database_url, timeout=10))

    try:
        for _ in range(_MAX_CONNECTIONS // _CONNECTIONS_PER_STEP):
            before = len(taken)
            async with anyio.create_task_group() as takers:
                for _ in range(_CONNECTIONS_PER_STEP):
                    takers.start_soon(take)
            if len(taken) < before + _CONNECTIONS_PER_STEP:  # the limit is reached
                break
        await anyio.sleep(seconds)
    finally:
        for connection in taken:
            connection.terminate()


async def read_only(ground: Ground, _random: Random, seconds: float) -> None:
    """Make the primary reject writes, also on open connections."""
    await _altered(
        ground,
        seconds,
        ("alter system set default_transaction_read_only = on", _RELOAD),
        ("alter system reset default_transaction_read_only", _RELOAD),
    )


async def password_changed(ground: Ground, _random: Random, seconds: float) -> None:
    """Change the password of the coordinators' role, and cut its connections."""
    await _altered(
        ground,
        seconds,
        (f"alter role {COORDINATORS_ROLE} password 'wrong'", _TERMINATE),
        (f"alter role {COORDINATORS_ROLE} password '{COORDINATORS_PASSWORD}'",),
    )


async def login_refused(ground: Ground, _random: Random, seconds: float) -> None:
    """Forbid logins of the coordinators' role, and cut its connections."""
    await _altered(
        ground,
        seconds,
        (f"alter role {COORDINATORS_ROLE} nologin", _TERMINATE),
        (f"alter role {COORDINATORS_ROLE} login",),
    )


async def backends_terminated(ground: Ground, _random: Random, _seconds: float) -> None:
    """End every connection of the coordinators, like an administrator."""
    await _execute(ground, (_TERMINATE,))


async def _altered(ground: Ground, seconds: float, change: Sequence[str], restore: Sequence[str]) -> None:
    await _execute(ground, change)
    try:
        await anyio.sleep(seconds)
    finally:
        with anyio.CancelScope(shield=True):
            await _execute(ground, restore)


async def _execute(ground: Ground, statements: Sequence[str]) -> None:
    async with _connected(ground) as connection:
        for statement in statements:
            await connection.execute(statement)


async def silent(ground: Ground, _random: Random, seconds: float) -> None:
    """Keep connections open but pass no bytes, so that neither end notices."""
    with ground.database.black_hole():
        await anyio.sleep(seconds)


async def database_killed(ground: Ground, _random: Random, seconds: float) -> None:
    """Kill the server during its work. It recovers from its log."""
    await ground.postgres.kill()
    await anyio.sleep(seconds)
    for attempt in range(_STARTS):
        await ground.postgres.start()
        try:
            await ground.postgres.until_ready()
        except DevnetError:  # the rest of the crashed server must exit first
            if attempt + 1 == _STARTS:
                raise
            await anyio.sleep(0.1)
        else:
            return


@asynccontextmanager
async def _connected(ground: Ground) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """Connect without the proxy, once the server is up. Another lane may be restarting it."""
    with anyio.fail_after(60):
        while True:
            try:
                connection = await asyncpg.connect(ground.database_url, timeout=5)
                break
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await anyio.sleep(0.2)
    try:
        yield connection
    finally:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.close(timeout=5)
