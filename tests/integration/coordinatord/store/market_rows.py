"""A market in the tables alone: jobs, models and providers that no chain knows of."""

from coordinatord.store.database import Connection


async def begin_index(connection: Connection) -> None:
    await connection.execute("insert into index_position (block_number, block_hash, block_time) values (1, '\\x01', 1)")


async def add_models(connection: Connection, models: int, *, first: int = 1) -> None:
    await connection.execute(
        "insert into models (model_id, name, enabled, owned_by, params_schema)"
        " select n, 'model ' || n, true, 'us', '{}' from generate_series($2::bigint, $2::bigint - 1 + $1::bigint) as n",
        models,
        first,
    )


async def add_providers(connection: Connection, providers: int) -> None:
    """Listed, allowed every model, with room for more than anybody asks for."""
    await connection.execute(
        "insert into providers (provider_id, operator, box_key, listed, allow_all_models, reputation, requested,"
        " ceiling) select n, sha256(n::text::bytea), '\\x02', true, true, 1000, 1000000, 1000000"
        " from generate_series(1, $1::bigint) as n",
        providers,
    )


async def add_jobs(connection: Connection, jobs: int, *, models: int) -> None:
    """Open bids, one a block, of each model in turn."""
    await connection.execute(
        "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
        " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log)"
        " select sha256(n::text::bytea), '\\x01', sha256(n::text::bytea), 1 + n % $2::bigint, 3600, 1000000, 2000000,"
        " 1000, 1000, 0, 2000000000, 3000, 250, 2000,"
        " 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', '\\x02', n, 0"
        " from generate_series(1, $1::bigint) as n",
        jobs,
        models,
    )
