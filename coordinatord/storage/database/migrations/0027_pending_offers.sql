-- least release: 0.1.0
-- Jobs whose post is under way, as a provider may be offered them before a block has them. What a claim of one needs is
-- here until the index has it. Who holds such a job is a lease like any other, so that no job has two holders; a row
-- goes when its post has ended.
create table pending_offers (
    job_id bytea primary key,
    relay_id bigint not null,  -- of the post
    owner bytea not null,
    c bytea not null,
    model_id bigint not null,
    sla_secs bigint not null,
    rate_in numeric not null,
    rate_out numeric not null,
    units_in bigint not null,
    units_out bigint not null,
    designated bigint not null,
    expires_at bigint not null,
    order_sig bytea not null,
    pay_sig bytea not null,
    fee_bps integer not null,
    gas_fee numeric not null,
    task_cid text not null,
    offered_to bigint[] not null default '{}',  -- in their turn; the last one has it, or lost it
    claimed_by bigint,
    stored_at timestamptz not null default clock_timestamp()
);
create index pending_offers_waiting on pending_offers (model_id, relay_id) where claimed_by is null;
