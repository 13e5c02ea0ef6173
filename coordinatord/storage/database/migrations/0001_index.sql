-- What the chain says, and how to take it back.
--
-- Every table below that is named in `undoable` is written by the indexer alone, inside the transaction that moves
-- index_position. Near the head each change leaves its old row in undo_journal; a reorg restores them newest first.
-- In backfill (blocks that can no longer be reorganised away within the journal's window) nothing is journaled.

create table index_position (
    only_row boolean primary key default true check (only_row),
    block_number bigint not null,
    block_hash bytea not null,
    block_time bigint not null,
    rebuilding boolean not null default false  -- a reorg went deeper than the journal: unready until replayed
);

-- The canonical chain as indexed, kept for the journal's window.
create table index_blocks (
    number bigint primary key,
    hash bytea not null,
    parent_hash bytea not null,
    time bigint not null
);

create table undo_journal (
    seq bigint generated always as identity primary key,
    block_number bigint not null,
    table_name text not null,
    key jsonb not null,          -- the primary key columns
    old_row jsonb                -- null: the row was inserted by this block
);
create index undo_journal_block on undo_journal (block_number);

create table jobs (
    job_id bytea primary key,
    owner bytea not null,
    c bytea not null,
    model_id bigint not null,
    sla_secs bigint not null,
    rate_in numeric(39) not null,
    rate_out numeric(39) not null,
    units_in bigint not null,
    units_out bigint not null,
    designated bigint not null,
    expires_at bigint not null,
    cap numeric(39) not null,
    fee_bps integer not null,
    gas_fee numeric(39) not null,
    task_cid text not null,
    pay_sig bytea not null,
    posted_block bigint not null,
    posted_log bigint not null,       -- orders jobs inside a block
    state smallint not null default 0,
    ended_because smallint not null default 0,
    provider_id bigint not null default 0,
    claimed_at bigint not null default 0,
    completion_tok bigint not null default 0,
    cost numeric(39) not null default 0,
    result_cid text
);

-- Apart from the table, because a first backfill goes twice as fast without them.
create function build_job_indexes() returns void language sql as $$
    create index if not exists jobs_oldest on jobs (posted_block, posted_log);
    create index if not exists jobs_owner on jobs (owner, posted_block, posted_log);
    create index if not exists jobs_provider on jobs (provider_id, posted_block, posted_log) where provider_id > 0;
    create index if not exists jobs_model_state on jobs (model_id, state, posted_block, posted_log);
    create index if not exists jobs_open on jobs (model_id, posted_block, posted_log) where state = 0;
    create index if not exists jobs_claimed on jobs (claimed_at) where state = 1;
$$;
create function drop_job_indexes() returns void language sql as $$
    drop index if exists jobs_oldest, jobs_owner, jobs_provider, jobs_model_state, jobs_open, jobs_claimed;
$$;
select build_job_indexes();

create table models (
    model_id bigint primary key,
    name text not null,
    enabled boolean not null,
    owned_by text not null,
    params_schema text not null
);
create index models_name on models (name);

create table slas (
    sla_secs bigint primary key,
    allowed boolean not null
);

create table fees (
    only_row boolean primary key default true check (only_row),
    fee_bps integer not null,
    gas_fee numeric(39) not null
);

create table providers (
    provider_id bigint primary key,
    operator bytea not null unique,
    box_key bytea,
    evidence bytea,
    identity_at bigint not null default 0,
    listed boolean not null default false,
    allow_all_models boolean not null default false,
    reputation integer not null,
    requested bigint not null,
    ceiling bigint not null default 0,
    capacity_at bigint not null default 0,
    active_jobs bigint not null default 0
);

create table provider_models (
    provider_id bigint not null,
    model_id bigint not null,
    primary key (provider_id, model_id)
);

create table asks (
    provider_id bigint not null,
    model_id bigint not null,
    sla bigint not null,
    rate_in numeric(39) not null,
    rate_out numeric(39) not null,
    primary key (provider_id, model_id, sla)
);
create index asks_model on asks (model_id, sla);

create table ask_times (
    provider_id bigint primary key,
    signed_at bigint not null
);

create table allowlist (
    key bytea primary key,
    status smallint not null,
    entry text not null
);

-- Journaling is done by triggers so that no writer can forget it: one insert for each statement, whatever it changed.
-- `svc.journal_block` holds the block being applied; an empty value (backfill, undo itself) switches it off.
do $$
declare
    undoable constant text[][] := array[
        ['jobs', 'job_id'], ['models', 'model_id'], ['slas', 'sla_secs'], ['fees', 'only_row'],
        ['providers', 'provider_id'], ['provider_models', 'provider_id,model_id'],
        ['asks', 'provider_id,model_id,sla'], ['ask_times', 'provider_id'], ['allowlist', 'key']];
    entry text[];
    change text[];
begin
    foreach entry slice 1 in array undoable loop
        foreach change slice 1 in array array[
            ['insert', 'new', 'null'], ['update', 'old', 'to_jsonb(t)'], ['delete', 'old', 'to_jsonb(t)']]
        loop
            execute format(
                'create function journal_%1$s_%2$s() returns trigger language plpgsql as $f$ begin '
                'insert into undo_journal (block_number, table_name, key, old_row) '
                'select current_setting(''svc.journal_block'')::bigint, %1$L, jsonb_build_object(%3$s), %4$s '
                'from changed t; return null; end $f$',
                entry[1], change[1],
                (select string_agg(format('%1$L, t.%1$I', k), ', ') from unnest(string_to_array(entry[2], ',')) as k),
                change[3]);
            execute format(
                'create trigger journal_%2$s after %2$s on %1$I referencing %3$s table as changed for each statement '
                'when (coalesce(current_setting(''svc.journal_block'', true), '''') <> '''') '
                'execute function journal_%1$s_%2$s()',
                entry[1], change[1], change[2]);
        end loop;
    end loop;
end
$$;
