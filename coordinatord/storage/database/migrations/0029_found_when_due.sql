-- least release: 0.1.0
-- What the janitor and the indexer look for among many rows that are none of theirs. Batches with a result are kept
-- longer than those without.
create index batches_ended on batches ((coalesce(completed_at, failed_at, expired_at, cancelled_at)))
    where completed > 0;
create index batches_ended_without on batches ((coalesce(completed_at, failed_at, expired_at, cancelled_at)))
    where completed = 0;
create index sessions_provider on sessions (provider_id) where provider_id is not null;
