-- What a provider holds by designation, and what is reserved for it: plans count them, polls lease them.
create or replace function build_job_indexes() returns void language sql as $$
    create index if not exists jobs_oldest on jobs (posted_block, posted_log);
    create index if not exists jobs_owner on jobs (owner, posted_block, posted_log);
    create index if not exists jobs_provider on jobs (provider_id, posted_block, posted_log) where provider_id > 0;
    create index if not exists jobs_model_state on jobs (model_id, state, posted_block, posted_log);
    create index if not exists jobs_open on jobs (model_id, posted_block, posted_log)
        where state = 0 and designated = 0;
    create index if not exists jobs_designated on jobs (designated, model_id, posted_block, posted_log)
        where state = 0 and designated > 0;
    create index if not exists jobs_claimed on jobs (claimed_at) where state = 1;
$$;
create or replace function drop_job_indexes() returns void language sql as $$
    drop index if exists jobs_oldest, jobs_owner, jobs_provider, jobs_model_state, jobs_open, jobs_designated,
        jobs_claimed;
$$;
drop index if exists jobs_open;
select build_job_indexes();
