"""I9, watched while it happens: the database itself notes every lease that is taken over before it lapsed."""

from typing import Final

import asyncpg

# `leases` has one row per job, so two live leases would show as one that changes hands too early. Provider 0 is nobody:
# a job that would not be paid is taken from its holder, whose claim was refused for it, and held back from all.
_AUDIT: Final = """
create table if not exists lease_audit (job_id bytea, held_by bigint, taken_by bigint, at timestamptz);
create or replace function audit_lease() returns trigger language plpgsql as $$
begin
    if new.provider_id <> old.provider_id and new.provider_id <> 0 and old.provider_id <> 0
        and old.expires_at > clock_timestamp() then
        insert into lease_audit values (old.job_id, old.provider_id, new.provider_id, clock_timestamp());
    end if;
    return new;
end $$;
create or replace trigger audit_lease before update on leases for each row execute function audit_lease();
"""


async def install_lease_audit(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(_AUDIT)
    finally:
        await connection.close()


async def lease_violations(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    rows = await connection.fetch("select encode(job_id, 'hex') as job, held_by, taken_by, at from lease_audit")
    return [
        f"I9: job {row['job']} was leased to {row['taken_by']} at {row['at']} while {row['held_by']} held it"
        for row in rows
    ]
