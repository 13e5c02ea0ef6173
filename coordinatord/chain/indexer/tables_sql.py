"""Write merged changes to the tables with one statement per table, for a single event or fifty thousand.

A patch names the state that its row must be in. A missing row, or a row in another state, means that the node
contradicted itself, and the transaction is rolled back.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import asyncpg
import msgspec.structs

from coordinatord.chain.indexer.changes import OPEN, Contradiction, JobPatch, NewJob, RowChanges, contradiction_error
from coordinatord.chain.indexer.job_rows import JOB_COLUMNS, POSTED_COLUMNS, encode_job_rows, encode_posted_rows
from coordinatord.storage.database.connections import Connection


async def write_patches(connection: Connection, changes: RowChanges) -> None:
    """Write all changes except new jobs, in the caller's transaction. Call `write_new_jobs` first.

    Raise Retryable when the changes do not follow from the rows.
    """
    for field, write in _WRITERS:
        if getattr(changes, field):
            try:
                await write(connection, changes)
            except asyncpg.UniqueViolationError as duplicate:
                raise _duplicate_row_error(field, duplicate) from duplicate


async def next_job_ordinal(connection: Connection) -> int:
    """Return the ordinal of the next job. During a first backfill, the index on `ordinal` is missing, so this query
    reads the whole table."""
    return int(await connection.fetchval("select coalesce(max(ordinal) + 1, 0) from jobs"))


async def write_new_jobs(connection: Connection, new_jobs: Iterable[NewJob], ordinal: int) -> None:
    """Insert new jobs in chain order. Raise Retryable for a job that already exists."""
    jobs = list(enumerate(new_jobs, ordinal))
    moved = [(ordinal, job) for ordinal, job in jobs if job.state != OPEN]
    if len(moved) < len(jobs):
        posted = jobs if not moved else [(ordinal, job) for ordinal, job in jobs if job.state == OPEN]
        await _copy_jobs(connection, encode_posted_rows(posted), POSTED_COLUMNS)
    if moved:
        await _copy_jobs(connection, encode_job_rows(moved), JOB_COLUMNS)


async def _copy_jobs(connection: Connection, rows: bytes, columns: Sequence[str]) -> None:
    # A memoryview, because asyncpg treats bytes as a path.
    try:
        await connection.copy_to_table("jobs", source=memoryview(rows), columns=columns, format="binary")
    except asyncpg.UniqueViolationError as duplicate:
        raise _duplicate_row_error("new_jobs", duplicate) from duplicate


def _duplicate_row_error(field: str, duplicate: asyncpg.UniqueViolationError) -> Contradiction:
    return contradiction_error(f"a row of {field} already exists ({duplicate.detail})")


async def _write_jobs(connection: Connection, changes: RowChanges) -> None:
    patches = list(changes.jobs.values())
    command_tag = await connection.execute(
        "update jobs set state = p.state, ended_because = p.ended_because,"
        " provider_id = coalesce(p.provider_id, jobs.provider_id),"
        " claimed_at = coalesce(p.claimed_at, jobs.claimed_at),"
        " completion_tok = coalesce(p.completion_tok, jobs.completion_tok),"
        " cost = coalesce(p.cost::numeric, jobs.cost), result_cid = coalesce(p.result_cid, jobs.result_cid),"
        " ended_at = coalesce(p.ended_at, jobs.ended_at)"
        " from unnest($1::bytea[], $2::smallint[], $3::smallint[], $4::smallint[], $5::bigint[], $6::bigint[],"
        " $7::bigint[], $8::text[], $9::text[], $10::bigint[])"
        " as p(job_id, was, state, ended_because, provider_id, claimed_at, completion_tok, cost, result_cid, ended_at)"
        " where jobs.job_id = p.job_id and jobs.state = p.was",
        *_transpose([_patch_values(patch) for patch in patches]),
    )
    _check_row_count(command_tag, len(patches), "jobs")


def _patch_values(patch: JobPatch) -> tuple[object, ...]:
    return (
        patch.job_id,
        patch.required_state,
        patch.state,
        patch.ended_because,
        patch.provider_id,
        patch.claimed_at,
        patch.completion_tok,
        _numeric_text(patch.cost),
        patch.result_cid,
        patch.ended_at,
    )


async def _write_new_providers(connection: Connection, changes: RowChanges) -> None:
    await connection.executemany(
        "insert into providers (provider_id, operator, box_key, evidence, identity_at, listed, allow_all_models,"
        " reputation, requested, ceiling, capacity_at, active_jobs)"
        " values ($1, $2, nullif($3, decode(repeat('00', 32), 'hex')), $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        [_row_values(provider) for provider in changes.new_providers.values()],
    )


async def _write_providers(connection: Connection, changes: RowChanges) -> None:
    # A patch with `identity_at` also sets the box key. A box key of zeros means no key.
    patches = list(changes.providers.values())
    command_tag = await connection.execute(
        "update providers set operator = coalesce(p.operator, providers.operator),"
        " box_key = case when p.identity_at is null then providers.box_key"
        " else nullif(p.box_key, decode(repeat('00', 32), 'hex')) end,"
        " evidence = coalesce(p.evidence, providers.evidence),"
        " identity_at = coalesce(p.identity_at, providers.identity_at),"
        " listed = coalesce(p.listed, providers.listed),"
        " allow_all_models = coalesce(p.allow_all_models, providers.allow_all_models),"
        " reputation = coalesce(p.reputation, providers.reputation),"
        " requested = coalesce(p.requested, providers.requested),"
        " ceiling = coalesce(p.ceiling, providers.ceiling),"
        " capacity_at = coalesce(p.capacity_at, providers.capacity_at),"
        " active_jobs = providers.active_jobs + p.active_jobs"
        " from unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[], $6::boolean[], $7::boolean[],"
        " $8::integer[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[])"
        " as p(provider_id, operator, box_key, evidence, identity_at, listed, allow_all_models, reputation, requested,"
        " ceiling, capacity_at, active_jobs)"
        " where providers.provider_id = p.provider_id",
        *_transpose([_row_values(patch) for patch in patches]),
    )
    _check_row_count(command_tag, len(patches), "providers")
    moved = [patch for patch in patches if patch.operator is not None]
    if moved:
        # End the sessions of the previous operator. A reorg does not restore a session: the wallet signs in again.
        await connection.execute(
            "delete from sessions s using unnest($1::bigint[], $2::bytea[]) as p(provider_id, operator)"
            " where s.provider_id = p.provider_id and s.address <> p.operator",
            [patch.provider_id for patch in moved],
            [patch.operator for patch in moved],
        )


async def _delete_removed_providers(connection: Connection, changes: RowChanges) -> None:
    """Delete deregistered providers. Keep their jobs. Also keep their asks, because readers use only the asks of listed
    providers."""
    provider_ids = list(changes.removed_providers)
    command_tag = await connection.execute("delete from providers where provider_id = any($1::bigint[])", provider_ids)
    if command_tag != f"DELETE {len(provider_ids)}":
        raise contradiction_error("an unknown provider is deregistered")
    await connection.execute("delete from sessions where provider_id = any($1::bigint[])", provider_ids)


async def _write_provider_models(connection: Connection, changes: RowChanges) -> None:
    allowed = [pair for pair, yes in changes.provider_models.items() if yes]
    refused = [pair for pair, yes in changes.provider_models.items() if not yes]
    if allowed:
        await connection.execute(
            "insert into provider_models (provider_id, model_id) select * from unnest($1::bigint[], $2::bigint[])"
            " on conflict do nothing",
            *_transpose(allowed),
        )
    if refused:
        await connection.execute(
            "delete from provider_models where (provider_id, model_id) in"
            " (select * from unnest($1::bigint[], $2::bigint[]))",
            *_transpose(refused),
        )


async def _write_models(connection: Connection, changes: RowChanges) -> None:
    await connection.executemany(
        "insert into models (model_id, name, enabled, owned_by, params_schema) values ($1, $2, $3, $4, $5)"
        " on conflict (model_id) do update set name = excluded.name, enabled = excluded.enabled,"
        " owned_by = excluded.owned_by, params_schema = excluded.params_schema",
        [_row_values(model) for model in changes.models.values()],
    )


async def _write_slas(connection: Connection, changes: RowChanges) -> None:
    await connection.executemany(
        "insert into slas (sla_secs, allowed) values ($1, $2)"
        " on conflict (sla_secs) do update set allowed = excluded.allowed",
        list(changes.slas.items()),
    )


async def _write_fees(connection: Connection, changes: RowChanges) -> None:
    await connection.execute(
        "insert into fees (fee_bps, gas_fee) values ($1, $2)"
        " on conflict (only_row) do update set fee_bps = excluded.fee_bps, gas_fee = excluded.gas_fee",
        *(changes.fees or ()),
    )


async def _write_asks(connection: Connection, changes: RowChanges) -> None:
    published = [(*key, str(rates[0]), str(rates[1])) for key, rates in changes.asks.items() if rates is not None]
    withdrawn = [key for key, rates in changes.asks.items() if rates is None]
    if published:
        await connection.execute(
            "insert into asks (provider_id, model_id, sla, rate_in, rate_out)"
            " select provider_id, model_id, sla, rate_in::numeric, rate_out::numeric"
            " from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])"
            " as q(provider_id, model_id, sla, rate_in, rate_out)"
            " on conflict (provider_id, model_id, sla)"
            " do update set rate_in = excluded.rate_in, rate_out = excluded.rate_out",
            *_transpose(published),
        )
    if withdrawn:
        await connection.execute(
            "delete from asks where (provider_id, model_id, sla) in"
            " (select * from unnest($1::bigint[], $2::bigint[], $3::bigint[]))",
            *_transpose(withdrawn),
        )


async def _write_ask_times(connection: Connection, changes: RowChanges) -> None:
    await connection.execute(
        "insert into ask_times (provider_id, signed_at) select * from unnest($1::bigint[], $2::bigint[])"
        " on conflict (provider_id) do update set signed_at = excluded.signed_at",
        *_transpose(list(changes.ask_times.items())),
    )


async def _write_allowlist(connection: Connection, changes: RowChanges) -> None:
    await connection.executemany(
        "insert into allowlist (key, status, entry) values ($1, $2, $3)"
        " on conflict (key) do update set status = excluded.status, entry = excluded.entry",
        [(key, status, entry) for key, (status, entry) in changes.allowlist.items()],
    )


# New rows come before patches that could conflict with them in a constraint.
_WRITERS: Final[tuple[tuple[str, Callable[[Connection, RowChanges], Awaitable[None]]], ...]] = (
    ("jobs", _write_jobs),
    ("new_providers", _write_new_providers),
    ("providers", _write_providers),
    ("removed_providers", _delete_removed_providers),
    ("provider_models", _write_provider_models),
    ("models", _write_models),
    ("slas", _write_slas),
    ("fees", _write_fees),
    ("asks", _write_asks),
    ("ask_times", _write_ask_times),
    ("allowlist", _write_allowlist),
)


def _row_values(row: msgspec.Struct) -> tuple[object, ...]:
    return msgspec.structs.astuple(row)


def _transpose(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return one array per column, as unnest expects."""
    return list(zip(*rows, strict=True))


def _numeric_text(number: int | None) -> str | None:
    # Binding text is cheaper than binding a Decimal.
    return None if number is None else str(number)


def _check_row_count(command_tag: str, expected: int, table: str) -> None:
    if command_tag != f"UPDATE {expected}":
        raise contradiction_error(f"not all of the {expected} changed rows of {table} exist in the required state")


_DROP_INDEXES: Final = """
drop index if exists jobs_due, jobs_ordinal, jobs_posted_block, jobs_state, jobs_model, jobs_owner, jobs_provider,
    jobs_open, jobs_designated, jobs_claimed, jobs_expired, jobs_owner_open, jobs_owner_settled, jobs_provider_settled,
    jobs_ended;
alter table jobs disable trigger count_insert, disable trigger count_update, disable trigger count_delete;
"""


async def drop_job_indexes(connection: Connection) -> None:
    """Drop the indexes of `jobs` and disable the triggers that count jobs. The caller must call `build_job_indexes`
    before requests may read the table."""
    await connection.execute(_DROP_INDEXES)


async def build_job_indexes(connection: Connection) -> None:
    """Build missing indexes. This is cheap when no index is missing."""
    await connection.execute("select build_job_indexes()")
