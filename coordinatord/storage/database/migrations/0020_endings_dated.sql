-- least release: 0.1.0
-- Which transaction ended a job is kept for a while, and read from the chain again after that. now() is one value for all
-- rows that there are, so that none is rewritten.
alter table job_ends add column kept_at timestamptz not null default now();
create index job_ends_kept on job_ends (kept_at);
