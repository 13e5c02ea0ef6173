-- least release: 0.1.0
-- A job's row holds the block that posted it: that is all it takes to undo the post, and a journal of inserts said the
-- same once more, a row for each job.
drop trigger journal_insert on jobs;
drop function journal_jobs_insert();
delete from undo_journal where table_name = 'jobs' and old_row is null;

-- A first backfill counts its jobs by itself, and goes faster without this index, too.
create function build_ordinal_index() returns void language sql as $$
    create unique index if not exists jobs_ordinal on jobs (ordinal);
$$;
create function drop_ordinal_index() returns void language sql as $$
    drop index if exists jobs_ordinal;
$$;
