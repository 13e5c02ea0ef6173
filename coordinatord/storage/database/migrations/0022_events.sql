-- least release: 0.1.0
-- Event log: what happened to jobs, in the order in which the index learnt it. The indexer appends to it in the
-- transaction that changes the jobs' rows; readers go on from the last id that they have seen, in any process.
--
-- Ids grow in the order of commits, because one indexer writes at a time. They have gaps, where a transaction was rolled
-- back. The log is never empty: who has seen nothing yet goes on from its newest id.
create table events (
    id bigint generated always as identity primary key,
    kind smallint not null,             -- common.api.events.EventKind; 7 is a reset, which has no job
    block_number bigint not null,       -- of a reset: where the index stood
    block_time bigint not null,
    happened timestamptz not null default now(),
    job_id bytea,
    owner bytea,
    model_id bigint,
    provider_id bigint,
    designated bigint,
    state smallint,
    ended_because smallint,
    takes_back bigint,                  -- id of the event that a reorganisation undid
    check (kind = 7 or job_id is not null)
);
-- Rows come in the order of both, so that a summary of each few pages finds them; a tree would cost every row.
create index events_order on events using brin (block_number, happened) with (pages_per_range = 16, autosummarize = on);
create index events_taken_back on events (takes_back) where takes_back is not null;
create index events_resets on events (id) where kind = 7;

-- The block that the log goes up to. An indexer of a release without the log moves the position and leaves this behind.
alter table index_position add column events_hash bytea;

insert into events (kind, block_number, block_time) values (7, 0, 0);
