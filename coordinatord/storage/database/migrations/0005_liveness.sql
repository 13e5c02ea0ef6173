-- What provider polls tell: who is there for which model, with how many free slots. Lost with no harm: the next poll
-- of each provider says it again.
create table liveness (
    provider_id bigint not null,
    model_id bigint not null,
    free bigint not null,
    seen_at timestamptz not null,
    picked_at timestamptz,               -- the last order designated to it: among equal prices, who waited longest is first
    primary key (provider_id, model_id)
);
create index liveness_model on liveness (model_id, seen_at);

-- A poll holds the jobs it was given for a while, so that pollers do not race for one job on the chain.
create table leases (
    job_id bytea primary key,
    provider_id bigint not null,
    model_id bigint not null,
    expires_at timestamptz not null
);
create index leases_provider on leases (provider_id, model_id);
create index leases_expiry on leases (expires_at);
