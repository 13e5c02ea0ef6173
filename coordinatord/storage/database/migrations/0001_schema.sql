-- least release: 0.1.0

-- The database of a coordinator, grouped by capability:
--
--     server      the PostgreSQL cluster and timeline that this was written on
--     index       position, journal of reorgs, jobs, counts of jobs, events, catalogue, providers, reliability
--     outbox      relays, their transactions, gas budgets
--     wallets     nonces, sessions
--     storage     objects, pinned keys, files, bytes stored by owner
--     leasing     liveness, leases, offers before a block has the post
--     batches     batches, their workers, their lines
--     webhooks    endpoints, messages
--     tabs        frames under way, their readers
--     escrow      generations of escrow keys
--     claims      views of what a provider may claim
--
-- Times named `*_at` are timestamptz where the coordinator's clock set them, and Unix seconds where a block or a
-- signature did. Amounts are numeric(39): a uint128 of the token's smallest unit. Addresses and hashes are bytea.


-- Server ----------------------------------------------------------------------------------------------------------------

-- Cluster and timeline of PostgreSQL that roles worked on last. A promotion raises the timeline. Every term of a role
-- begins with a write to this row, so that its commit shows that the standby confirms commits.
create table server_epoch (
    only_row boolean primary key default true check (only_row), system_identifier bigint not null,
    timeline bigint not null,
    since timestamptz not null default clock_timestamp(), terms bigint not null default 1
);


-- Index: position and journal ------------------------------------------------------------------------------------------
--
-- Only the indexer writes these tables, in the transaction that moves `index_position`. Near the head, a trigger saves
-- each changed row in `undo_journal`, so that a reorg can restore it. Blocks far below the head are not journaled.

-- Block up to which the tables of the index are complete. One row, once a block was indexed.
create table index_position (
    only_row boolean primary key default true check (only_row), block_number bigint not null,
    block_hash bytea not null, block_time bigint not null,
    rebuilding boolean not null default false  -- a reorg went deeper than the journal: not ready until replayed
);

-- Canonical blocks that a reorg can go back to: an unbroken run that ends at the position.
create table index_blocks (
    number bigint primary key, hash bytea not null, parent_hash bytea not null, time bigint not null
);

-- Rows as they were before a block changed them.
create table undo_journal (
    seq bigint generated always as identity primary key, block_number bigint not null, table_name text not null,
    inserted boolean not null,   -- the block inserted the row: undo deletes it
    saved jsonb not null         -- the row before the change; for an inserted row, the new row
);
-- Undo and the end of the journal's window select by block.
create index undo_journal_block on undo_journal (block_number);

-- Save a changed row for undo. `svc.journal_block` holds the number of the block that is applied. The triggers skip
-- rows while it is empty, as in a backfill and in undo itself.
create function save_for_undo() returns trigger language plpgsql as $$
begin
    insert into undo_journal (block_number, table_name, inserted, saved)
    values (current_setting('svc.journal_block')::bigint, tg_table_name, tg_op = 'INSERT',
        to_jsonb(case when tg_op = 'INSERT' then new else old end));
    return null;
end
$$;


-- Index: jobs ----------------------------------------------------------------------------------------------------------

-- Jobs of the registry, as its events tell them. An open job past `expires_at` is marked as the registry reports it,
-- state 3 because of 5, when the position moves past that time. A mark follows from the row and the block's time, so it
-- is not journaled: the code that moves the position sets and removes marks.
create table jobs (
    job_id bytea primary key, owner bytea not null,
    c bytea not null,                        -- commitment to the sealed input
    model_id bigint not null, sla_secs bigint not null, rate_in numeric(39) not null, rate_out numeric(39) not null,
    units_in bigint not null, units_out bigint not null,
    designated bigint not null,              -- provider that alone may claim the job; 0 for any provider
    expires_at bigint not null, cap numeric(39) not null, fee_bps integer not null, gas_fee numeric(39) not null,
    task_cid text not null, pay_sig bytea not null, posted_block bigint not null,
    posted_log bigint not null,              -- orders jobs within a block
    state smallint not null default 0 check (state between 0 and 3),  -- JobState
    ended_because smallint not null default 0 check (ended_because between 0 and 5),  -- EndedBecause
    provider_id bigint not null default 0,   -- 0 before the claim
    claimed_at bigint not null default 0, completion_tok bigint not null default 0,
    cost numeric(39) not null default 0, result_cid text,
    ordinal bigint not null,                 -- place in the order of posting, from 0 without gaps
    ended_at bigint                          -- time of the block that ended the job; null while open, and when expired
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000);  -- polls step over dead open jobs
-- No trigger for inserts: `posted_block` suffices to undo a post.
create trigger save_for_undo after update or delete on jobs for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();

-- Number of jobs in each list, by chunks of 2^12 and 2^18 ordinals. A page deep inside a list is found by adding up a
-- few dozen rows. Lists: all jobs (0), jobs of a model (1), of an owner (2), of a provider (3).
create table job_counts (
    list smallint not null check (list between 0 and 3),
    key bytea not null,          -- int8send of a model or provider, an owner's address, empty for all jobs
    bits smallint not null check (bits in (12, 18)), chunk bigint not null, state smallint not null,
    jobs bigint not null,
    primary key (list, key, bits, chunk, state)
) with (fillfactor = 80);

-- Sums of an owner's jobs by model.
create table owner_sums (
    owner bytea not null, model_id bigint not null, jobs bigint not null, completed bigint not null,
    escrowed numeric not null,
    primary key (owner, model_id)
) with (fillfactor = 80);

-- Job that enters (jobs = 1) or leaves (jobs = -1) a count.
create type job_change as (
    owner bytea, model_id bigint, provider_id bigint, chunk bigint, state smallint, jobs bigint, cap numeric
);

-- Keep `job_counts` and `owner_sums` equal to a fresh count of `jobs`: sums of 0 leave no row.
create function count_jobs() returns trigger language plpgsql as $$
declare
    changes job_change[];
    empty_counts job_counts[];
    empty_sums owner_sums[];
begin
    if tg_op <> 'DELETE' then
        select array_agg((owner, model_id, provider_id, ordinal >> 12, state, 1, cap)::job_change)
            into changes from added;
    end if;
    if tg_op <> 'INSERT' then
        select changes || array_agg((owner, model_id, provider_id, ordinal >> 12, state, -1, -cap)::job_change)
            into changes from gone;
    end if;
    with small as materialized (
        select l.list, l.key, c.chunk, c.state, sum(c.jobs) as jobs
        from (select owner, model_id, provider_id, chunk, state, sum(jobs) as jobs from unnest(changes)
            group by owner, model_id, provider_id, chunk, state) c
        cross join lateral (values (0::smallint, ''::bytea), (1::smallint, int8send(c.model_id)),
            (2::smallint, c.owner), (3::smallint, int8send(c.provider_id))) as l (list, key)
        where l.list <> 3 or c.provider_id > 0
        group by l.list, l.key, c.chunk, c.state having sum(c.jobs) <> 0),
    counted as (
        insert into job_counts as j (list, key, bits, chunk, state, jobs)
        select list, key, 12, chunk, state, jobs from small
        union all
        select list, key, 18, chunk >> 6, state, sum(jobs) from small group by list, key, chunk >> 6, state
            having sum(jobs) <> 0
        on conflict (list, key, bits, chunk, state) do update set jobs = j.jobs + excluded.jobs
        returning j as count),
    summed as (
        insert into owner_sums as s (owner, model_id, jobs, completed, escrowed)
        select owner, model_id, sum(jobs), coalesce(sum(jobs) filter (where state = 2), 0), sum(cap)
        from unnest(changes) group by owner, model_id
        having sum(jobs) <> 0 or sum(jobs) filter (where state = 2) <> 0 or sum(cap) <> 0
        on conflict (owner, model_id) do update set jobs = s.jobs + excluded.jobs,
            completed = s.completed + excluded.completed, escrowed = s.escrowed + excluded.escrowed
        returning s as sums)
    select (select array_agg(count) from counted where (count).jobs = 0),
        (select array_agg(sums) from summed where (sums).jobs = 0)
        into empty_counts, empty_sums;
    delete from job_counts j using unnest(empty_counts) e
        where (j.list, j.key, j.bits, j.chunk, j.state) = (e.list, e.key, e.bits, e.chunk, e.state);
    delete from owner_sums s using unnest(empty_sums) e where (s.owner, s.model_id) = (e.owner, e.model_id);
    return null;
end
$$;
create trigger count_insert after insert on jobs referencing new table as added
    for each statement execute function count_jobs();
create trigger count_update after update on jobs referencing old table as gone new table as added
    for each statement execute function count_jobs();
create trigger count_delete after delete on jobs referencing old table as gone
    for each statement execute function count_jobs();

-- Build the missing indexes of `jobs`, mark what expired, and count. A first backfill runs twice as fast without them:
-- it drops the indexes and disables the count triggers (tables_sql.py), and calls this function when it is done.
create function build_job_indexes() returns void language plpgsql as $$
begin
    -- Open jobs by expiry: the next ones to mark.
    create index if not exists jobs_due on jobs (expires_at) where state = 0;
    if exists (select from pg_trigger
            where tgrelid = 'jobs'::regclass and tgname = 'count_insert' and tgenabled = 'D') then
        update jobs set state = 3, ended_because = 5
            where state = 0 and expires_at < (select block_time from index_position);
        truncate job_counts, owner_sums;
        with small as materialized (
            select l.list, l.key, j.chunk, j.state, sum(j.n) as n
            from (select owner, model_id, provider_id, state, ordinal >> 12 as chunk, count(*) as n from jobs
                group by owner, model_id, provider_id, state, ordinal >> 12) j
            cross join lateral (values (0::smallint, ''::bytea), (1::smallint, int8send(j.model_id)),
                (2::smallint, j.owner), (3::smallint, int8send(j.provider_id))) as l (list, key)
            where l.list <> 3 or j.provider_id > 0
            group by l.list, l.key, j.chunk, j.state)
        insert into job_counts (list, key, bits, chunk, state, jobs)
            select list, key, 12, chunk, state, n from small
            union all
            select list, key, 18, chunk >> 6, state, sum(n) from small group by list, key, chunk >> 6, state;
        insert into owner_sums (owner, model_id, jobs, completed, escrowed)
            select owner, model_id, count(*), count(*) filter (where state = 2), sum(cap)
            from jobs group by owner, model_id;
        alter table jobs enable trigger count_insert, enable trigger count_update, enable trigger count_delete;
    end if;
    create unique index if not exists jobs_ordinal on jobs (ordinal);  -- The newest ordinal, and pages of all jobs.
    -- Undo deletes the jobs of reorganised blocks.
    create index if not exists jobs_posted_block on jobs (posted_block);
    -- Pages of jobs by state, by model, by owner and by provider.
    create index if not exists jobs_state on jobs (state, ordinal);
    create index if not exists jobs_model on jobs (model_id, state, ordinal);
    create index if not exists jobs_owner on jobs (owner, state, ordinal);
    create index if not exists jobs_provider on jobs (provider_id, state, ordinal) where provider_id > 0;
    -- Open bids in the order in which polls lease them.
    create index if not exists jobs_open on jobs (model_id, posted_block, posted_log)
        where state = 0 and designated = 0;
    -- Open jobs designated to a provider, in the order in which polls lease them.
    create index if not exists jobs_designated on jobs (designated, model_id, posted_block, posted_log)
        where state = 0 and designated > 0;
    -- Claimed jobs by age, for the reclaimer.
    create index if not exists jobs_claimed on jobs (claimed_at) where state = 1;
    -- Marked jobs by expiry, for a position that moves back.
    create index if not exists jobs_expired on jobs (expires_at) where ended_because = 5;
    -- What the claims of an owner's open jobs will collect.
    create index if not exists jobs_owner_open on jobs (owner, expires_at) include (cap, fee_bps, gas_fee)
        where state = 0;
    -- Recently settled jobs of an owner and of a provider, which earn gas budget.
    create index if not exists jobs_owner_settled on jobs (owner, claimed_at) where state = 2;
    create index if not exists jobs_provider_settled on jobs (provider_id, claimed_at) where state = 2;
    -- How jobs of providers ended lately: the sums of `reliability` read this index alone.
    create index if not exists jobs_ended on jobs (ended_at)
        include (provider_id, model_id, ended_because, claimed_at, completion_tok)
        where ended_at is not null and provider_id > 0;
end
$$;
select build_job_indexes();


-- Index: events --------------------------------------------------------------------------------------------------------

-- Log of what happened to jobs, in the order in which the index learnt it. The indexer appends in the transaction that
-- changes the jobs. Ids grow in the order of commits, with gaps. Readers continue after the last id they have seen, so
-- the log is never empty.
create table events (
    id bigint generated always as identity primary key,
    kind smallint not null check (kind between 0 and 7),  -- EventKind; 7 is a reset, which has no job
    block_number bigint not null,            -- for a reset: the position
    block_time bigint not null, happened timestamptz not null default now(), job_id bytea, owner bytea,
    model_id bigint, provider_id bigint, designated bigint,
    state smallint check (state between 0 and 3),
    ended_because smallint check (ended_because between 0 and 5),
    takes_back bigint,                       -- id of the event that a reorg removed
    check (kind = 7 or job_id is not null)
);
-- Events by block and by age. Rows arrive in the order of both, so summaries of page ranges suffice.
create index events_order on events using brin (block_number, happened) with (pages_per_range = 16, autosummarize = on);
-- Events that were taken back already.
create index events_taken_back on events (takes_back) where takes_back is not null;
create index events_resets on events (id) where kind = 7;  -- The newest reset: events before it are never taken back.
insert into events (kind, block_number, block_time) values (7, 0, 0);


-- Index: catalogue -----------------------------------------------------------------------------------------------------

-- Models of the registry.
create table models (
    model_id bigint primary key, name text not null, enabled boolean not null, owned_by text not null,
    params_schema text not null  -- as published on the chain, which is not always JSON
);
create trigger save_for_undo after insert or update or delete on models for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();
create index models_name on models (name);  -- Models by name, as requests name them.

-- Completion windows that the registry allows.
create table slas (
    sla_secs bigint primary key, allowed boolean not null
);
create trigger save_for_undo after insert or update or delete on slas for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();

-- Fees of the market. One row.
create table fees (
    only_row boolean primary key default true check (only_row), fee_bps integer not null, gas_fee numeric(39) not null
);
create trigger save_for_undo after insert or update or delete on fees for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();

-- Entries of the on-chain allowlist.
create table allowlist (
    key bytea primary key, status smallint not null, entry text not null
);
create trigger save_for_undo after insert or update or delete on allowlist for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();


-- Index: providers -----------------------------------------------------------------------------------------------------

-- Providers of the registry. `operator` is not unique: an operator may hand its provider over and register again.
create table providers (
    provider_id bigint primary key, operator bytea not null, box_key bytea, evidence bytea,
    identity_at bigint not null default 0, listed boolean not null default false,
    allow_all_models boolean not null default false, reputation integer not null, requested bigint not null,
    ceiling bigint not null default 0, capacity_at bigint not null default 0, active_jobs bigint not null default 0
);
create trigger save_for_undo after insert or update or delete on providers for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();
-- Listed providers: quotes and lists of asks begin with them.
create index providers_listed on providers (provider_id) where listed;

-- Number of jobs that a provider may hold at a time.
create function capacity(v providers) returns bigint language sql immutable as $$
    select greatest(1, v.reputation * least(v.requested, v.ceiling) / 1000)
$$;

-- Models that a provider is allowed to run.
create table provider_models (
    provider_id bigint not null, model_id bigint not null,
    primary key (provider_id, model_id)
);
create trigger save_for_undo after insert or update or delete on provider_models for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();

-- Lowest rates that a provider asks for a model and completion window.
create table asks (
    provider_id bigint not null, model_id bigint not null, sla bigint not null, rate_in numeric(39) not null,
    rate_out numeric(39) not null,
    primary key (provider_id, model_id, sla)
);
create trigger save_for_undo after insert or update or delete on asks for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();
create index asks_model on asks (model_id, sla);  -- Asks for an order.

-- Signing time of a provider's newest asks.
create table ask_times (
    provider_id bigint primary key, signed_at bigint not null
);
create trigger save_for_undo after insert or update or delete on ask_times for each row
    when (current_setting('svc.journal_block', true) <> '') execute function save_for_undo();

-- How the jobs of each provider ended lately, recounted from time to time. Model -1 is all models together.
create table reliability (
    provider_id bigint not null, model_id bigint not null, settled bigint not null, failed bigint not null,
    reclaimed bigint not null,
    median_secs bigint,          -- from the claim to the settle
    units_per_sec bigint,        -- charged output units of the settled jobs, by their time from the claim to the settle
    primary key (provider_id, model_id)
);

-- True for a wallet that has earned more room: owner of a settled job, operator of a listed provider, or operator of a
-- provider that has settled a job.
create function has_earned(wallet bytea) returns boolean language sql stable as $$
    select exists (select from jobs j where j.owner = wallet and j.state = 2)
        or exists (select from providers v where v.operator = wallet and (v.listed
            or exists (select from jobs j where j.provider_id = v.provider_id and j.state = 2)))
$$;

-- True when a provider wants orders for this model and window at these rates. A provider without asks wants all orders.
create function meets_ask(provider bigint, model bigint, window_secs bigint, in_rate numeric, out_rate numeric)
returns boolean language sql stable as $$
    select exists (select from asks k where k.provider_id = provider and k.model_id = model and k.sla = window_secs
        and k.rate_in <= in_rate and k.rate_out <= out_rate)
        or not exists (select from asks k where k.provider_id = provider)
$$;


-- Outbox: relays and transactions --------------------------------------------------------------------------------------
--
-- A relay is one op of one caller, and is stored before anything is signed. A relay transaction has one nonce of one
-- account and carries one or more relays. Each version of a transaction (a fee bump) has its own bytes and hash.

create type relay_state as enum (
    'queued',     -- waits to be simulated and signed
    'signed',     -- carried by a transaction whose bytes are stored, and which may have been broadcast
    'mined',      -- the op took effect: final unless a reorg removes its block
    'refused',    -- final: the chain rejects it, in a simulation or when mined; nothing took effect
    'dropped'     -- final: given up before signing (queue timeout, no funds, node trouble); nothing took effect
);

-- Transactions of the relayer accounts. The nonces of an account are contiguous here.
create table relay_txs (
    id bigint generated always as identity primary key, chain_id bigint not null, account bytea not null,
    nonce bigint not null, target bytea not null, calldata bytea not null, gas bigint not null,
    -- 'fill': a self-transfer that closes a gap. 'foreign': another program used the nonce before we assigned it.
    purpose text not null check (purpose in ('relay', 'fill', 'foreign')),
    created_at timestamptz not null default clock_timestamp(),
    broadcast_at timestamptz,            -- the last time a node accepted it
    mined_hash bytea,                    -- the version that was mined
    block_number bigint, block_hash bytea, succeeded boolean,
    lost boolean not null default false, -- another transaction used its nonce
    -- Code by which nodes refused every sending so far; null before the first and once a node may have the bytes.
    refusal text check (refusal in ('rate_limited', 'rpc_internal', 'endpoint_refused')),
    unique (chain_id, account, nonce)
);
-- Pending transactions of an account.
create index relay_txs_pending on relay_txs (account, nonce) where block_number is null and not lost;
-- Mined transactions by block, to compare with the chain.
create index relay_txs_block on relay_txs (block_number) where block_number is not null;
create index relay_txs_lost on relay_txs (account) where lost;  -- Nonces that other programs used.

-- Signed bytes of a transaction, one row per fee.
create table relay_tx_versions (
    hash bytea primary key, tx_id bigint not null references relay_txs, raw bytea not null,
    max_fee numeric(39) not null, max_tip numeric(39) not null,
    fills boolean not null default false, -- a self-transfer, which carries none of the relays
    created_at timestamptz not null default clock_timestamp()
);
create index relay_tx_versions_tx on relay_tx_versions (tx_id);  -- Versions of a transaction.

-- Ops to relay, and how they ended.
create table relays (
    id bigint generated always as identity primary key,
    kind text not null check (kind in ('post', 'claim', 'settle', 'fail', 'cancel', 'reclaim', 'set_identity',
        'request_capacity', 'publish')),
    subject bytea not null,              -- key of a queue: a job id, or an op's signer padded to 32 bytes
    dedupe bytea not null,               -- an equal request joins the live relay; never made of signature bytes
    target bytea not null,               -- the registry
    calldata bytea not null,
    priority smallint not null check (priority between 0 and 3),  -- Priority
    state relay_state not null default 'queued', tx_id bigint references relay_txs,
    call_index integer,                  -- place in relay(bytes[]); null when the relay is the whole transaction
    reason text,                         -- refused: the contract error's name; dropped: the code for the caller
    raw bytea,                           -- refused with an unknown error: the revert data
    created_at timestamptz not null default clock_timestamp(),
    queued_at timestamptz not null default clock_timestamp(),  -- start of the queue timeout
    requeued integer not null default 0, -- times that it returned to the queue; then it rides alone, with more gas
    ended_at timestamptz,
    signer bytea,                        -- null for the coordinator's own ops
    gas_estimate bigint not null default 0,   -- counts until the gas is booked; weight in a shared transaction
    newcomer boolean not null default false,  -- the signer had earned nothing: counts for all newcomers, too
    amount numeric(78),                  -- of a post: what its claim will collect from the owner
    mined_block bigint,
    -- What the request names beyond `dedupe`, such as a settle's content id, which is not signed. An equal request with
    -- other content does not join: a copied signature must not get another result mined.
    content bytea,
    held_until timestamptz               -- no queue timeout drops it before
);
create unique index relays_live on relays (dedupe) where state in ('queued', 'signed');  -- One live relay per request.
create index relays_queue on relays (priority, id) where state = 'queued';  -- The queue, in its order.
create index relays_subject on relays (subject) where state in ('queued', 'signed');  -- Live relays of a subject.
create index relays_tx on relays (tx_id);  -- Relays of a transaction.
create index relays_ended on relays (ended_at) where ended_at is not null;  -- Ended relays by age, for the janitor.
-- Dropped relays, for batches that queue their posts again.
create index relays_dropped on relays (id) where state = 'dropped';
-- Gas under way of a signer, and of all newcomers.
create index relays_signer on relays (signer) include (kind, gas_estimate)
    where state in ('queued', 'signed') and signer is not null;
create index relays_newcomers on relays (newcomer) include (gas_estimate)
    where state in ('queued', 'signed') and newcomer;
-- Mined posts of an owner that the index does not show yet.
create index relays_posted on relays (signer, mined_block) include (amount) where state = 'mined' and kind = 'post';
-- Transactions that began a job, that ended it, and ops of a job that failed.
create index relays_beginning on relays (subject) where state = 'mined' and kind in ('post', 'claim');
create index relays_ending on relays (subject)
    where state = 'mined' and kind in ('settle', 'fail', 'reclaim', 'cancel');
create index relays_refused on relays (subject)
    where state in ('refused', 'dropped') and kind in ('post', 'claim', 'settle', 'fail', 'cancel', 'reclaim');

-- Transactions that carried a relay before it returned to the queue. Their bytes were sent, so any of them may still
-- take effect after a reorg.
create table relay_formers (
    relay_id bigint not null references relays on delete cascade,
    tx_id bigint not null references relay_txs on delete cascade, call_index integer,
    primary key (relay_id, tx_id)
);
create index relay_formers_tx on relay_formers (tx_id);  -- Relays that a transaction carried.

-- Transaction that ended a job, or that cancelled an expired one. Relays are dropped after a week, and a cancel of a
-- year ago must not cost a second transaction. The chain can tell it again, so old rows go.
create table job_ends (
    job_id bytea primary key, tx_hash bytea not null, kept_at timestamptz not null default now()
);
create index job_ends_kept on job_ends (kept_at);  -- Rows by age, for the janitor.

-- Trace contexts of relays, where tracing is configured and the request's trace is sampled. A lost row costs a span, so
-- no foreign key slows the deletion of relays down.
create table relay_traces (
    relay_id bigint primary key, kind text not null, subject bytea not null,
    traceparent text not null check (length(traceparent) = 55),  -- W3C, version 00
    kept_at timestamptz not null default clock_timestamp()
);
create index relay_traces_subject on relay_traces (subject, kind);  -- Contexts of a job.
create index relay_traces_kept on relay_traces (kept_at);  -- Old contexts, for the janitor.


-- Outbox: budgets ------------------------------------------------------------------------------------------------------

-- Gas that each mined transaction used, by signer and kind of op. A reorg removes the bookings of its transactions. Ops
-- of the coordinator itself have the signer ''.
create table gas_bookings (
    tx_id bigint not null references relay_txs on delete cascade, signer bytea not null,
    kind text not null check (kind in ('post', 'claim', 'settle', 'fail', 'cancel', 'reclaim', 'set_identity',
        'request_capacity', 'publish', 'fill')),
    newcomer boolean not null,           -- counts for all newcomers, too
    hour bigint not null,                -- of the Unix time
    gas bigint not null,
    primary key (tx_id, signer, kind, newcomer)
);
create index gas_bookings_signer on gas_bookings (signer, hour) include (kind, gas);  -- Bookings of a signer.
-- Bookings of all newcomers, and of everyone for the list of top spenders.
create index gas_bookings_hour on gas_bookings (newcomer, hour) include (signer, kind, gas);

-- Hour of the Unix time.
create function current_hour() returns bigint language sql volatile as $$
    select floor(extract(epoch from clock_timestamp()) / 3600)::bigint
$$;

-- Kinds of ops that count for a budget.
create function kinds_of_budget(budget text) returns text[] language sql immutable as $$
    select case budget
        when 'posts' then array['post']
        when 'cancels' then array['cancel']
        when 'work' then array['claim', 'settle', 'fail']
        else array['set_identity', 'request_capacity', 'publish']  -- 'upkeep'
    end
$$;

-- Gas used in this hour and in the last 24 hours of the clock, by a signer or, for the budget 'newcomers', by all
-- newcomers. Estimates of live relays count as used just now. One statement reads both: a transaction that was booked between two
-- reads would count twice.
create function gas_used(spender bytea, budget text, out in_hour bigint, out in_day bigint) language sql volatile as $$
    select coalesce(sum(u.gas) filter (where u.hour = (select current_hour())), 0)::bigint,
        coalesce(sum(u.gas), 0)::bigint
    from (
        select b.hour, b.gas from gas_bookings b
            where budget <> 'newcomers' and b.signer = spender and b.hour > (select current_hour()) - 24
            and b.kind = any((select kinds_of_budget(budget))::text[])
        union all select b.hour, b.gas from gas_bookings b
            where budget = 'newcomers' and b.newcomer and b.hour > (select current_hour()) - 24
        union all select (select current_hour()), r.gas_estimate from relays r
            where budget <> 'newcomers' and r.state in ('queued', 'signed') and r.signer = spender
            and r.kind = any((select kinds_of_budget(budget))::text[])
        union all select (select current_hour()), r.gas_estimate from relays r
            where budget = 'newcomers' and r.state in ('queued', 'signed') and r.newcomer
    ) u (hour, gas)
$$;

-- True when `estimate` more gas fits the limits of an hour and of a day. The first op of an hour and of a day always
-- fits, so that no request waits for ever.
create function gas_fits(spender bytea, budget text, estimate bigint, hour_limit bigint, day_limit bigint)
returns boolean language sql volatile as $$
    select (u.in_hour = 0 or u.in_hour + estimate <= hour_limit) and (u.in_day = 0 or u.in_day + estimate <= day_limit)
    from gas_used(spender, budget) u
$$;

-- What an owner's posts will collect that the index does not show at `position`: live posts, and posts mined above it.
create function unindexed_posts(of_owner bytea, "position" bigint) returns numeric language sql stable as $$
    select coalesce((select sum(r.amount) from relays r
            where r.signer = of_owner and r.kind = 'post' and r.state in ('queued', 'signed')
            and not exists (select from jobs j where j.job_id = r.subject and j.posted_block <= "position")), 0)
        + coalesce((select sum(r.amount) from relays r
            where r.signer = of_owner and r.kind = 'post' and r.state = 'mined' and r.mined_block > "position"), 0)
$$;

-- A relay to be submitted. The limits of a budget are null where it has none.
create type new_relay as (
    kind text, subject bytea, dedupe bytea, target bytea, calldata bytea, priority smallint, content bytea,
    held_seconds float8,                 -- no queue timeout drops it before
    signer bytea, gas_estimate bigint, budget text, hour_limit bigint, day_limit bigint,
    newcomers_hour_limit bigint, newcomers_day_limit bigint,
    amount numeric, headroom numeric, "position" bigint
);

-- Join each request to the live relay of the same request, refuse it, or queue it. A cancel joins the relay that has
-- just cancelled its job. `same_as` is the dedupe of the relay that was joined.
-- The limits are counted, so submitters take turns. That costs nothing on top of NOTIFY, which makes committing
-- transactions take turns anyway. Code that makes ended relays live again (`lock_outbox`) takes the same lock.
create function submit_relays(submitted new_relay[], max_depth integer, max_per_subject integer)
returns table (outcome text, relay_id bigint, same_as bytea) language plpgsql as $$
declare
    depth integer;
    request new_relay;
    content_of_same bytea;
    inserted boolean := false;
begin
    perform pg_advisory_xact_lock(x'52454c4159'::bigint);
    -- Posts of batches have a bound of their own, and never fill the queue of single requests. Exits have room beyond
    -- `max_depth`, which other requests cannot fill.
    select count(*) into depth from relays where state = 'queued' and priority < 3;
    foreach request in array submitted loop
        select r.id, r.dedupe, r.content into relay_id, same_as, content_of_same from relays r
            where r.dedupe = request.dedupe and r.state in ('queued', 'signed');
        if relay_id is null and request.kind = 'cancel' then
            select r.id, r.dedupe into relay_id, same_as from relays r
                where r.subject = request.subject and r.kind = 'cancel' and r.state = 'mined' order by r.id limit 1;
        end if;
        if relay_id is not null and request.content is not null
                and request.content is distinct from content_of_same then
            relay_id := null;
            outcome := 'subject_busy';
        elsif relay_id is not null then
            outcome := 'joined';
        elsif (select count(*) from relays r where r.subject = request.subject and r.state in ('queued', 'signed'))
                >= max_per_subject then
            outcome := 'subject_busy';
        elsif depth >= max_depth + (request.priority = 0)::integer * 1024 then
            outcome := 'queue_full';
        elsif request.day_limit is not null
                and not gas_fits(request.signer, request.budget, request.gas_estimate, request.hour_limit, request.day_limit) then
            outcome := 'over_budget';
        elsif request.newcomers_day_limit is not null and not gas_fits(
                '', 'newcomers', request.gas_estimate, request.newcomers_hour_limit, request.newcomers_day_limit) then
            outcome := 'over_newcomers_budget';
        elsif request.headroom is not null
                and unindexed_posts(request.signer, request."position") + request.amount > request.headroom then
            outcome := 'insolvent';
        else
            insert into relays (kind, subject, dedupe, target, calldata, priority, content, signer, gas_estimate,
                newcomer, amount)
            values (request.kind, request.subject, request.dedupe, request.target, request.calldata, request.priority, request.content, request.signer,
                request.gas_estimate, request.newcomers_day_limit is not null, request.amount)
            returning id into relay_id;
            outcome := 'queued';
            depth := depth + 1;
            inserted := true;
        end if;
        if request.held_seconds > 0 then
            update relays set held_until = clock_timestamp() + request.held_seconds * interval '1 second'
                where id = relay_id;
        end if;
        return next;
    end loop;
    if inserted then
        perform pg_notify('outbox_moved', 'queued');
    end if;
end
$$;


-- Wallets --------------------------------------------------------------------------------------------------------------

-- Challenges of the handshake that were issued and not used yet.
create table nonces (
    nonce text primary key, address bytea not null,
    caller text not null,                -- requests of a stranger evict the stranger's own nonces first
    issued_at timestamptz not null default clock_timestamp(), expires_at timestamptz not null
);
create index nonces_address on nonces (address, issued_at);  -- Nonces of a wallet by age, for evictions.
create index nonces_expiry on nonces (expires_at);  -- Nonces by expiry, for the janitor.

-- Signed-in wallets and providers.
create table sessions (
    token_hash bytea primary key,        -- sha256 of the token: a stolen database honours no session
    address bytea not null,
    provider_id bigint,                  -- set for a provider session
    expires_at timestamptz not null
);
create index sessions_address on sessions (address, expires_at);  -- Sessions of a wallet.
create index sessions_expiry on sessions (expires_at);  -- Sessions by expiry, for the janitor.
-- Sessions of a provider that changed hands or left.
create index sessions_provider on sessions (provider_id) where provider_id is not null;

-- Number of times that sessions were removed or changed. A process may rely on a session that it knows while the number
-- is the same. One row.
create table sessions_taken_back (
    times bigint not null, one boolean primary key default true check (one)
);
insert into sessions_taken_back (times) values (0);

-- Count removals and changes, whatever statement made them.
create function count_sessions_taken_back() returns trigger language plpgsql as $$
begin
    if exists (select from gone) then
        update sessions_taken_back set times = times + 1;
    end if;
    return null;
end
$$;
create trigger sessions_removed after delete on sessions referencing old table as gone
    for each statement execute function count_sessions_taken_back();
create trigger sessions_changed after update on sessions referencing old table as gone
    for each statement execute function count_sessions_taken_back();


-- Storage --------------------------------------------------------------------------------------------------------------
--
-- A row is written before its upload begins, so that a crash leaves no object that the database does not know. The
-- janitor removes the object and the row when `expires_at` has passed. It sets `removing_until` first, and no upload of
-- the same key begins before that time or while the row exists.

-- Containers and results in the pin store.
create table objects (
    key text primary key,                -- the store's key: containers/<job id>, results/<job id>/<sha256>
    subject bytea not null,              -- the job it belongs to, which is the subject of its relay
    cid text,                            -- null until the store answered
    bytes bigint not null,
    sha256 bytea not null,
    attached boolean not null default false,  -- its job is on the chain: kept for the retention period
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,     -- while not attached: until then its op may still be under way
    holders integer not null default 1,  -- requests that may still post what it holds
    removing_until timestamptz, owner bytea not null default '',
    decided boolean not null default false  -- its job has ended, and `expires_at` follows from how
);
create index objects_expiry on objects (expires_at);  -- Objects by expiry, for the janitor.
create index objects_cid on objects (cid);  -- Objects by content, for reads and shared pins.
-- Objects whose retention is to be decided when their job ends.
create index objects_undecided on objects (subject) where attached and not decided;

-- Content of each key, for stores that know objects by content alone (plain S3, Kubo). Several keys may have the same
-- content, which the store keeps until the last of them is removed.
create table pinned_keys (
    key text collate "C" primary key, cid text not null
);
create index pinned_keys_cid on pinned_keys (cid);  -- Keys of a content.

-- Files that wallets uploaded or batches wrote. The store holds each under `files/<id>`.
create table files (
    id text primary key,                 -- file-<24 hex digits>
    owner bytea not null, purpose text not null check (purpose in ('input', 'result', 'batch', 'batch_output')),
    filename text not null,
    cid text,                            -- null until the store holds all of it
    commitment bytea,                    -- of an input: the `c` that its bytes commit to
    bytes bigint not null default 0,
    lines integer not null default 0,    -- of a batch or batch_output file: lines that are not blank
    attached boolean not null default false,  -- a job or a batch refers to it: kept for the retention period
    created_at timestamptz not null default clock_timestamp(), expires_at timestamptz not null,
    upload_id text,                      -- the store's multipart upload, to abort when it is left unfinished
    held_for bytea,                      -- job that is being posted or settled with it
    held_until timestamptz,              -- not removed before: the op may still be under way
    removing_until timestamptz
);
create index files_cid on files (owner, cid);  -- Files of an owner by content.
create index files_expiry on files (expires_at);  -- Files by expiry, for the janitor.

-- Bytes and rows kept for each owner, so that a quota is one read. Triggers on `objects`, `files` and `batches` add.
create table stored (
    owner bytea not null,
    kind text not null check (kind in ('containers', 'results', 'inputs', 'batch_files', 'batches')),
    bytes bigint not null, rows bigint not null,
    earned boolean not null default false,  -- has_earned(owner) when the janitor last looked
    primary key (owner, kind)
);
-- What is kept for wallets that earned nothing: they share one quota, because a new wallet costs nothing.
create index stored_of_newcomers on stored (owner) where not earned;

-- Keep `stored` equal to the sums over the three tables.
create function count_stored() returns trigger language plpgsql as $$
declare
    changes stored[];
begin
    if tg_op <> 'DELETE' then
        case tg_table_name
        when 'objects' then
            select array_agg((owner, case when key like 'containers/%' then 'containers' else 'results' end,
                bytes, 1, false)::stored) into changes from added;
        when 'files' then
            select array_agg((owner, case purpose when 'input' then 'inputs' when 'result' then 'results'
                else 'batch_files' end, bytes, 1, false)::stored) into changes from added;
        when 'batches' then
            select array_agg((owner, 'batches', octet_length(metadata::text), 1 + lines, false)::stored)
                into changes from added;
        end case;
    end if;
    if tg_op <> 'INSERT' then
        case tg_table_name
        when 'objects' then
            select changes || array_agg((owner, case when key like 'containers/%' then 'containers' else 'results' end,
                -bytes, -1, false)::stored) into changes from gone;
        when 'files' then
            select changes || array_agg((owner, case purpose when 'input' then 'inputs' when 'result' then 'results'
                else 'batch_files' end, -bytes, -1, false)::stored) into changes from gone;
        when 'batches' then
            select changes || array_agg((owner, 'batches', -octet_length(metadata::text), -1 - lines, false)::stored)
                into changes from gone;
        end case;
    end if;
    insert into stored as s (owner, kind, bytes, rows)
        select owner, kind, sum(bytes), sum(rows) from unnest(changes)
        group by owner, kind having sum(bytes) <> 0 or sum(rows) <> 0
        order by owner, kind  -- the same order for all writers, or two of them deadlock
        on conflict (owner, kind) do update set bytes = s.bytes + excluded.bytes, rows = s.rows + excluded.rows;
    return null;
end
$$;
create trigger count_insert after insert on objects referencing new table as added
    for each statement execute function count_stored();
create trigger count_update after update on objects referencing old table as gone new table as added
    for each statement execute function count_stored();
create trigger count_delete after delete on objects referencing old table as gone
    for each statement execute function count_stored();
create trigger count_insert after insert on files referencing new table as added
    for each statement execute function count_stored();
create trigger count_update after update on files referencing old table as gone new table as added
    for each statement execute function count_stored();
create trigger count_delete after delete on files referencing old table as gone
    for each statement execute function count_stored();


-- Leasing --------------------------------------------------------------------------------------------------------------

-- Free slots of each provider by model, from its polls. Loss is harmless: the next poll writes the row again.
create table liveness (
    provider_id bigint not null, model_id bigint not null, free bigint not null, seen_at timestamptz not null,
    picked_at timestamptz,               -- last order designated to it: at equal prices, the longest wait is first
    primary key (provider_id, model_id)
);
create index liveness_model on liveness (model_id, seen_at);  -- Providers of a model that polled lately.

-- Jobs that a poll handed out, held so that pollers do not race for one job on the chain. A job whose payment cannot be
-- collected is leased to provider 0 until it is worth another look.
create table leases (
    job_id bytea primary key, provider_id bigint not null, model_id bigint not null, expires_at timestamptz not null,
    unpaid integer not null default 0    -- times in a row without payment: each doubles the wait
);
-- Leases of a provider. Expired leases need no index: the janitor reads the table, and each lease pays for an index.
create index leases_provider on leases (provider_id, model_id);

-- Jobs whose post is under way, offered to providers before a block has them. The row has what a claim needs, and goes
-- when the post has ended. The holder of such a job has a lease, so that no job has two holders.
create table pending_offers (
    job_id bytea primary key,
    relay_id bigint not null,            -- the post
    owner bytea not null, c bytea not null, model_id bigint not null, sla_secs bigint not null,
    rate_in numeric not null, rate_out numeric not null, units_in bigint not null, units_out bigint not null,
    designated bigint not null, expires_at bigint not null, order_sig bytea not null, pay_sig bytea not null,
    fee_bps integer not null, gas_fee numeric not null, task_cid text not null,
    offered_to bigint[] not null default '{}',  -- providers in their turn; the last one has it, or lost it
    claimed_by bigint, stored_at timestamptz not null default clock_timestamp()
);
-- Offers of a model that no provider has claimed.
create index pending_offers_waiting on pending_offers (model_id, relay_id) where claimed_by is null;
-- Offers that take room of a provider.
create index pending_offers_designated on pending_offers (designated) where designated > 0;


-- Batches --------------------------------------------------------------------------------------------------------------
--
-- A batch is an uploaded file of submissions, one a line, posted and followed as one. `batches` is what its owner sees
-- and may cancel. A worker locks the row of `batch_work` for one small transaction (FOR UPDATE SKIP LOCKED): one worker
-- at a time moves a batch, a dead worker frees it at once, and no request waits for a worker.

-- Batches, as their owners see them.
create table batches (
    id text primary key,                 -- batch_<24 hex digits>
    place bigint generated always as identity unique,  -- order of creation, and the cursor of pages
    owner bytea not null, endpoint text not null check (endpoint in ('/v1/responses', '/v1/embeddings')),
    input_file_id text not null, completion_window text not null check (completion_window in ('1h', '24h')),
    metadata json not null,              -- json, not jsonb: returned with its order and escapes as they came
    idempotency_key text,
    request_hash bytea not null,         -- the same key with another request is refused
    errors json,                         -- why the input file as a whole was refused
    output_file_id text, error_file_id text,
    -- Set when every line has ended: from then on status and counts are final.
    ends_as text check (ends_as in ('completed', 'expired', 'cancelled')), total integer not null default 0,
    completed integer not null default 0, failed integer not null default 0,
    created_at timestamptz not null default clock_timestamp(), expires_at timestamptz not null,
    in_progress_at timestamptz, finalizing_at timestamptz, completed_at timestamptz, failed_at timestamptz,
    expired_at timestamptz, cancelling_at timestamptz, cancelled_at timestamptz,
    lines integer not null default 0,    -- of the input file
    reported smallint not null default 0,  -- how many of the changes in `batches_unreported` have webhook messages
    unique (owner, idempotency_key)
);
-- Batches with changes that have no webhook messages yet.
create index batches_unreported on batches (place) where reported
    < num_nonnulls(in_progress_at, cancelling_at, failed_at, completed_at, expired_at, cancelled_at);
create index batches_owner on batches (owner, place desc);  -- Batches of an owner, newest first.
create index batches_input on batches (input_file_id);  -- Batches of an input file.
-- Ended batches by age, for the janitor: with a result they are kept longer than without.
create index batches_ended on batches ((coalesce(completed_at, failed_at, expired_at, cancelled_at)))
    where completed > 0;
create index batches_ended_without on batches ((coalesce(completed_at, failed_at, expired_at, cancelled_at)))
    where completed = 0;
create trigger count_insert after insert on batches referencing new table as added
    for each statement execute function count_stored();
create trigger count_update after update on batches referencing old table as gone new table as added
    for each statement execute function count_stored();
create trigger count_delete after delete on batches referencing old table as gone
    for each statement execute function count_stored();

-- Progress of the workers on each batch that has not ended.
create table batch_work (
    batch_id text primary key references batches, due_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0, -- failed attempts in a row
    bytes_done bigint not null default 0,  -- how far the input file is recorded
    lines_done integer not null default 0,
    expanded boolean not null default false  -- every line has its record
);
create index batch_work_due on batch_work (due_at);  -- The batch that has waited longest.

-- One record per line of the input file.
create table batch_lines (
    batch_id text not null references batches,
    line integer not null,               -- counted from 1, blank lines too
    job_id bytea,                        -- null when the line does not name a job
    relay_id bigint,                     -- the post
    code text,                           -- why it did not settle; for a posted line, set when the batch ends
    message text,
    late boolean not null default false, -- it ended because the batch's window ended
    result jsonb,                        -- how it settled; set when the batch ends
    primary key (batch_id, line)
);
-- One post per job and batch: another line of the same job is a duplicate.
create unique index batch_lines_posted on batch_lines (batch_id, job_id) where relay_id is not null;
-- Lines of a post, and lines of a job.
create index batch_lines_relay on batch_lines (relay_id) where relay_id is not null;
create index batch_lines_job on batch_lines (job_id) where relay_id is not null;


-- Webhooks -------------------------------------------------------------------------------------------------------------
--
-- Endpoints of owners, and an outbox of signed messages to them. The process that locks `webhook_position` makes
-- messages from the event log and from changes of batches. One transaction writes them and moves the position and
-- `batches.reported`, so each message is made exactly once. A process takes an endpoint for a turn by moving `not_before`, posts what is due, and stores the outcome. When it dies,
-- the messages are posted again under the same id after the turn's time.

-- Endpoints of owners, with their turns and results.
create table webhooks (
    id text primary key,                 -- whk_<24 hex digits>
    place bigint generated always as identity unique, owner bytea not null, url text not null,
    wanted text[] not null,              -- types of events; empty for all
    secret bytea not null,               -- sealed under WEBHOOKS_KEY: a stolen database signs nothing
    created_at timestamptz not null default clock_timestamp(), disabled_at timestamptz,
    disabled_because text check (disabled_because in ('gone', 'failing')), failing_since timestamptz,
    failures integer not null default 0, -- failed attempts in a row
    last_attempt_at timestamptz, last_status smallint, waiting integer not null default 0,
    delivered bigint not null default 0, dropped bigint not null default 0,
    missed boolean not null default false,   -- messages were skipped because too many waited; the owner is notified
    quick boolean not null default false,    -- it answered its last turn well and at once
    due_at timestamptz,                      -- of its earliest message; null when none waits
    not_before timestamptz not null default clock_timestamp(),  -- end of a turn under way, or of a pause
    turn_at timestamptz generated always as (
        case when disabled_at is null and due_at is not null then greatest(due_at, not_before) end) stored,
    check ((disabled_at is null) = (disabled_because is null))
);
create index webhooks_owner on webhooks (owner, place);  -- Endpoints of an owner, in their order.
create index webhooks_turn on webhooks (quick, turn_at) where turn_at is not null;  -- Endpoints whose turn is next.

-- Messages that wait. Every attempt sends the same id and bytes.
create table webhook_messages (
    id bigint generated always as identity primary key, webhook_id text not null references webhooks on delete cascade,
    message_id text not null,            -- msg_<32 hex digits>
    type text not null, body bytea not null, created_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0, due_at timestamptz not null default clock_timestamp()
);
create index webhook_messages_due on webhook_messages (webhook_id, due_at, id);  -- Due messages of an endpoint.

-- Last event of which messages were made. One row.
create table webhook_position (
    one boolean primary key default true check (one), event_id bigint not null
);
insert into webhook_position (event_id) select max(id) from events;


-- Tabs -----------------------------------------------------------------------------------------------------------------
--
-- Unlogged: a crash of PostgreSQL or a failover empties the tables, and the parties of each tab make a new handshake.

-- Frames that wait for the other side of a tab, for a minute. A row has consecutive frames of one post and tab.
create unlogged table tab_frames (
    id bigint generated always as identity,  -- the order of the frames
    job_id bytea not null,
    to_owner boolean not null,           -- sent by the provider
    frames integer not null,
    bytes integer not null,              -- of the frames in base64
    events bytea not null,               -- the frames as messages of the reader's stream
    sent_at timestamptz not null default clock_timestamp()
);
create index tab_frames_waiting on tab_frames (job_id, to_owner, id);  -- Frames that wait for a reader, in their order.

-- Newest reader of each tab and direction. Frames are delivered to no other reader.
create unlogged table tab_readers (
    job_id bytea not null, to_owner boolean not null,
    reader bigint not null,              -- random number of the stream
    primary key (job_id, to_owner)
);


-- Escrow ---------------------------------------------------------------------------------------------------------------

-- Generations of escrow keys that this deployment announced: public halves alone. The secrets are in the memory of the
-- instances. A new instance learns here which generations exist, and which of them no instance handed over.
create table escrow_generations (
    public_key bytea primary key,
    announced_from bigint not null,      -- Unix milliseconds
    announced_block bigint,              -- the head when it was first seen announced
    erased_at timestamptz,               -- after its retention: nothing sealed to it can be claimed any more
    lost_at timestamptz                  -- when an instance found that no other had handed it over
);
-- Block at which the present custody of escrow keys began: open bids up to it may be sealed to a key that was lost. -1
-- while no key was lost. A loss matters until what was sealed to the key is claimed (a day) and settled (another day),
-- with an hour to spare.
create view escrow_custody as
    select case when lost.announced_from is null then -1 else coalesce(
        (select min(coalesce(g.announced_block, 9223372036854775807)) from escrow_generations g
            where g.announced_from >= lost.announced_from and g.lost_at is null and g.erased_at is null),
        9223372036854775807) end as began
    from (select max(announced_from) as announced_from from escrow_generations
        where lost_at > statement_timestamp() - interval '49 hours') lost;


-- Claims ---------------------------------------------------------------------------------------------------------------
--
-- What a provider may claim now. Polls, pending offers, quotes, batch plans and the answer to why a job is unclaimed
-- read these views, and so agree.

-- Every provider with every model of the catalogue: may it claim jobs of the model, and how many more?
create view claimers as
    select *, enabled and listed and allowed as may_claim, capacity - active_jobs as room
    from (
        select v.provider_id, m.model_id, m.enabled, v.listed,
            v.allow_all_models or exists (select from provider_models a
                where a.provider_id = v.provider_id and a.model_id = m.model_id) as allowed,
            capacity(v) as capacity, v.active_jobs,
            -- Open jobs and pending offers that this provider alone may claim. Quotes and plans count them at once, so
            -- that a burst of orders within one block is spread.
            (select count(*) from jobs j where j.designated = v.provider_id and j.designated > 0 and j.state = 0)
            + (select count(*) from pending_offers o where o.designated = v.provider_id and o.designated > 0
                and not exists (select from jobs j where j.job_id = o.job_id)) as designated_jobs
        from providers v cross join models m
    ) pairs;

-- Open jobs that have not expired. A provider may claim one that is designated to it or to any provider. The time is the
-- statement's: with a volatile function in its columns, PostgreSQL would compute the whole view before filtering it.
create view open_jobs as
    select j.*,
        not exists (select from leases l where l.job_id = j.job_id and l.expires_at > statement_timestamp()) as is_free,
        -- Provider with a live lease of the job; 0 while the job is held back; null for a free job.
        (select l.provider_id from leases l where l.job_id = j.job_id and l.expires_at > statement_timestamp())
            as leased_to,
        -- False for an order that is designated to a provider and does not meet its asks.
        j.designated = 0 or meets_ask(j.designated, j.model_id, j.sla_secs, j.rate_in, j.rate_out) as wanted,
        j.designated = 0 and j.posted_block <= (select began from escrow_custody) as key_lost
    from jobs j
    where j.state = 0
        and j.expires_at - (select block_time from index_position) >= 0;  -- a difference, to keep off `jobs_due`

-- Offers that can be given to a provider: the post is under way, and no provider has the offer or a lease of the job.
create view free_offers as
    select o.* from pending_offers o
    where o.claimed_by is null
        and exists (select from relays r where r.id = o.relay_id and r.state in ('queued', 'signed'))
        and not exists (select from leases l where l.job_id = o.job_id and l.expires_at > statement_timestamp())
        and not exists (select from jobs j where j.job_id = o.job_id);
