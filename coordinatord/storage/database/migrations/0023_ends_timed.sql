-- least release: 0.1.0
-- When a job ended, by the time of the block that ended it; of one that expired `expires_at` says so. Jobs that ended before
-- this column came have none.
alter table jobs add column ended_at bigint;

-- How providers' jobs ended lately: the sums are taken over this index alone. A first backfill does without it.
create function build_ends_index() returns void language sql as $$
    create index if not exists jobs_ended on jobs (ended_at) include (provider_id, model_id, ended_because, claimed_at)
        where ended_at is not null and provider_id > 0;
$$;
create function drop_ends_index() returns void language sql as $$
    drop index if exists jobs_ended;
$$;
select build_ends_index();

-- Model -1 stands for all models of a provider together.
create table reliability (
    provider_id bigint not null,
    model_id bigint not null,
    settled bigint not null,
    failed bigint not null,
    reclaimed bigint not null,
    median_secs bigint,        -- from the claim to the settle
    primary key (provider_id, model_id)
);
