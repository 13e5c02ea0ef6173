"""A market in the tables alone, with jobs, models and providers that are on no chain."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinatord.chain.indexer.tables_sql import build_job_indexes, drop_job_indexes
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate


@asynccontextmanager
async def market(
    url: str, max_size: int = 3, *, models: int = 1, providers: int = 0, jobs: int = 0
) -> AsyncIterator[Database]:
    """Open a new database with an index, and these numbers of rows."""
    async with open_database(url, max_size=max_size) as database:
        async with database.connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, models)
            await add_providers(connection, providers)
            await add_jobs(connection, jobs, models=models)
        yield database


async def begin_index(connection: Connection) -> None:
    await connection.execute("insert into index_position (block_number, block_hash, block_time) values (1, '\\x01', 1)")


async def add_models(connection: Connection, models: int, *, first: int = 1) -> None:
    await connection.execute(
        "insert into models (model_id, name, enabled, owned_by, params_schema)"
        " select n, 'model ' || n, true, 'us', '{}' from generate_series($2::bigint, $2::bigint - 1 + $1::bigint) as n"
        " on conflict do nothing",
        models,
        first,
    )


async def add_providers(connection: Connection, providers: int) -> None:
    """Add listed providers that may serve every model and have more capacity than any test uses."""
    await connection.execute(
        "insert into providers (provider_id, operator, box_key, listed, allow_all_models, reputation, requested,"
        " ceiling) select n, sha256(n::text::bytea), '\\x02', true, true, 1000, 1000000, 1000000"
        " from generate_series(1, $1::bigint) as n on conflict do nothing",
        providers,
    )


async def add_jobs(connection: Connection, jobs: int, *, models: int, after: int = 0) -> None:
    """Add open bids, one per block, rotating over the models. `after` is the number of existing jobs."""
    await connection.execute(
        "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
        " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, ordinal)"
        " select sha256(n::text::bytea), '\\x01', sha256(n::text::bytea), 1 + n % $2::bigint, 3600, 1000000, 2000000,"
        " 1000, 1000, 0, 2000000000, 3000, 250, 2000,"
        " 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', '\\x02', n, 0, n - 1"
        " from generate_series($3::bigint + 1, $3::bigint + $1::bigint) as n",
        jobs,
        models,
        after,
    )


def owner_of(n: int) -> bytes:
    return n.to_bytes(20)


async def add_history(
    connection: Connection, jobs: int, *, models: int, providers: int, owner: bytes = owner_of(0)
) -> None:
    """Add a typical history: of ten jobs, seven settled, two ended otherwise, and one expired unclaimed.

    Each block holds ten jobs. Models and providers are evenly spread, and one owner has half of the jobs. Rows are
    written in bulk as in a first backfill, and the indexes are created last.
    """
    await drop_job_indexes(connection)
    await connection.execute(
        "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
        " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, ordinal, state,"
        " ended_because, provider_id, claimed_at, completion_tok, cost, result_cid)"
        " select sha256(n::text::bytea),"
        " case when n % 2 = 0 then $4::bytea else decode(lpad(to_hex(hashint8(n) & 1023), 40, '0'), 'hex') end,"
        " sha256(n::text::bytea), 1 + (hashint8(n + 1) & 65535) % $2::bigint, 3600, 1000000 + n % 1000, 2000000,"
        " 1000, 1000, 0, n / 10, 3000, 250, 2000,"
        " 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', decode(repeat('02', 65), 'hex'),"
        " n / 10, n % 10, n,"
        " case when n % 10 < 7 then 2 else 3 end, case when n % 10 < 7 then 1 when n % 10 < 8 then 3"
        " when n % 10 < 9 then 2 else 5 end,"
        " case when n % 10 < 8 then 1 + (hashint8(n + 2) & 65535) % $3::bigint else 0 end, 1, 500, 2000,"
        " case when n % 10 < 7 then 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy' end"
        " from generate_series(0, $1::bigint - 1) as n",
        jobs,
        models,
        providers,
        owner,
    )
    await build_job_indexes(connection)
