"""Watch I8 and I9 while the market runs: triggers in the database record every lease and every sign-in nonce.

Reading tables afterwards cannot show violations. A lease is one row per job, for any provider, and a used
nonce is deleted. A reorg also removes the record of a relayer's nonce that another process used.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import asyncpg

Connection = asyncpg.Connection

_AUDITS: Final = (
    "create table if not exists lease_history (seq bigint generated always as identity, job_id bytea,"
    " provider_id bigint, expires_at timestamptz, at timestamptz)",
    "create table if not exists session_history (transaction xid8, address bytea, at timestamptz)",
    "create table if not exists nonce_history (transaction xid8, nonce text, address bytea, lives boolean)",
    """create or replace function note_lease() returns trigger language plpgsql as $$
begin
    insert into lease_history (job_id, provider_id, expires_at, at)
    values (new.job_id, new.provider_id, new.expires_at, clock_timestamp());
    return null;
end $$""",
    "create or replace trigger note_lease after insert or update on leases for each row execute function note_lease()",
    """create or replace function note_session() returns trigger language plpgsql as $$
begin
    insert into session_history values (pg_current_xact_id(), new.address, clock_timestamp());
    return null;
end $$""",
    "create or replace trigger note_session after insert on sessions for each row execute function note_session()",
    """create or replace function note_nonce() returns trigger language plpgsql as $$
begin
    insert into nonce_history values (pg_current_xact_id(), old.nonce, old.address, old.expires_at > clock_timestamp());
    return null;
end $$""",
    "create table if not exists foreign_history (account bytea, nonce bigint, at timestamptz)",
    """create or replace function note_foreign() returns trigger language plpgsql as $$
begin
    insert into foreign_history values (new.account, new.nonce, clock_timestamp());
    return null;
end $$""",
    "create or replace trigger note_foreign after insert or update on relay_txs for each row"
    " when (new.lost or new.purpose = 'foreign') execute function note_foreign()",
    "create or replace trigger note_nonce after delete on nonces for each row execute function note_nonce()",
)
# A job whose owner cannot pay is taken from the provider whose claim was refused, and leased to none for a while. Its
# lease then names provider 0, which does not exist.
_TAKEN_OVER: Final = """
select encode(job_id, 'hex') as job, held_by, provider_id, at from (
    select *, lag(provider_id) over leases as held_by, lag(expires_at) over leases as held_until
    from lease_history window leases as (partition by job_id order by seq)) h
where provider_id <> held_by and provider_id <> 0 and held_by <> 0 and held_until > at
"""
_WITHOUT_NONCE: Final = """
select encode(address, 'hex') as address, count(*) as sessions, (select count(*) from nonce_history n
    where n.transaction = s.transaction and n.address = s.address and n.lives) as nonces
from session_history s group by transaction, address
"""
_NONCES_AGAIN: Final = "select nonce, count(*) as times from nonce_history group by nonce having count(*) > 1"


async def install_audits(database_url: str) -> None:
    await execute_apart(database_url, _AUDITS)


async def execute_apart(database_url: str, statements: Iterable[str]) -> None:
    """Run each statement in a separate transaction. Daemons are running, and waiting for one table must not lock
    another."""
    connection = await asyncpg.connect(database_url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


_AUDITED: Final = {
    "lease_history": "select count(*) from lease_history where provider_id <> 0",
    "session_history": "select count(*) from session_history",
    "foreign_history": "select count(distinct (account, nonce)) from foreign_history",
}
_FORGET: Final = (
    "delete from lease_history where expires_at < clock_timestamp()",  # a newer lease is compared with the next one
    "delete from session_history",
    "delete from nonce_history",
    "delete from foreign_history",
)


async def forget_audits(connection: "Connection[asyncpg.Record]") -> Counter[str]:
    """Delete the checked rows while no client is at work. Return the number of rows of each table before."""
    counts = Counter({table: int(await connection.fetchval(query)) for table, query in _AUDITED.items()})
    for statement in _FORGET:
        await connection.execute(statement)
    return counts


async def lease_violations(connection: "Connection[asyncpg.Record]") -> list[str]:
    """Return leases given while another provider's lease was valid."""
    return [
        f"I9: job {row['job']} was leased to {row['provider_id']} at {row['at']} while {row['held_by']} held it"
        for row in await connection.fetch(_TAKEN_OVER)
    ]


async def opened_without_nonce(connection: "Connection[asyncpg.Record]") -> list[str]:
    """Return sessions that were opened without a valid nonce of their address."""
    found = [
        f"I8: {row['sessions']} sessions of {row['address']} were opened with {row['nonces']} nonces"
        for row in await connection.fetch(f"select * from ({_WITHOUT_NONCE}) s where sessions > nonces")  # noqa: S608 - constants
    ]
    return found + [
        f"I8: nonce {row['nonce']} was used {row['times']} times" for row in await connection.fetch(_NONCES_AGAIN)
    ]
