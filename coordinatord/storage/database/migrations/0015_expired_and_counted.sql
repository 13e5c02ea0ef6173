-- What ended or expired costs those who look for the rest nothing, and a page far into a list is found instead of walked to.
--
-- An order that nobody claims emits no event when its time is over: so far it stayed `state = 0` for ever, at the front of
-- the indexes of open jobs. Now the index marks it as the registry tells it, state 3 because of 5, in the transaction in
-- which the position moves past its `expires_at`. The mark follows from the row and from the block's time alone, so it is
-- neither journaled nor an event of a block: whoever moves the position, forwards or back, sets and takes back marks to suit.
--
-- `ordinal` numbers jobs from 0 in the order of posting, without gaps: a reorganisation takes the last ones away. Lists are
-- in its order.

select drop_job_indexes();

alter table jobs add column ordinal bigint;
update jobs j set ordinal = o.ordinal,
        state = case when o.expired then 3 else j.state end,
        ended_because = case when o.expired then 5 else j.ended_because end
    from (select job_id, row_number() over (order by posted_block, posted_log) - 1 as ordinal,
            state = 0 and expires_at < coalesce((select block_time from index_position), 0) as expired
        from jobs) o
    where o.job_id = j.job_id;
alter table jobs alter column ordinal set not null;
update undo_journal u set old_row = u.old_row || jsonb_build_object('ordinal', j.ordinal)
    from jobs j
    where u.table_name = 'jobs' and u.old_row is not null and j.job_id = (jsonb_populate_record(null::jobs, u.key)).job_id;

create unique index jobs_ordinal on jobs (ordinal);  -- in a first backfill, too: it says which number comes next

-- Anybody may register and ask; who is listed is the operator's choice, and only their asks count: they are where quotes
-- and lists of asks begin.
create index providers_listed on providers (provider_id) where listed;

-- A dead entry in the index of open jobs is one more that a poll steps over: they are swept out by the thousand, not when
-- a fifth of all jobs there ever were has changed.
alter table jobs set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000);

create function mark_expired_jobs(at_time bigint) returns void language plpgsql
set enable_seqscan = off as $$
declare
    journaling text := coalesce(current_setting('svc.journal_block', true), '');
begin
    -- Not by a SET clause of the function: to create one for a setting of ours takes a superuser.
    perform set_config('svc.journal_block', '', true);
    if to_regclass('jobs_due') is not null then  -- in a first backfill, jobs are marked when the indexes are built
        update jobs set state = 3, ended_because = 5 where state = 0 and expires_at < at_time;
    end if;
    perform set_config('svc.journal_block', journaling, true);
end
$$;

-- For a position that went back.
create function unmark_expired_jobs(at_time bigint) returns void language plpgsql
set enable_seqscan = off as $$
declare
    journaling text := coalesce(current_setting('svc.journal_block', true), '');
begin
    perform set_config('svc.journal_block', '', true);
    update jobs set state = 0, ended_because = 0 where ended_because = 5 and expires_at >= at_time;
    perform set_config('svc.journal_block', journaling, true);
end
$$;

-- How many jobs each list holds of each chunk of 2^12 ordinals, and of each of 2^18: the way to a page deep inside, by a
-- few dozen of these rows. The lists are those of all jobs (0), of a model (1), of an owner (2) and of a provider (3).
create table job_counts (
    list smallint not null,
    key bytea not null,        -- int8send of a model or provider; an owner's address; nothing for the list of all
    bits smallint not null,    -- of the chunk: 12 or 18
    chunk bigint not null,
    state smallint not null,
    jobs bigint not null,
    primary key (list, key, bits, chunk, state)
) with (fillfactor = 80);

create table owner_sums (
    owner bytea not null,
    model_id bigint not null,
    jobs bigint not null,
    completed bigint not null,
    escrowed numeric not null,
    primary key (owner, model_id)
) with (fillfactor = 80);

-- Both are sums over `jobs` and kept by triggers on it: whatever changes a row, an event, a mark or an undo, changes them in
-- the same statement. A first backfill goes without the triggers, and counts when it is done.
create function jobs_are_counted() returns boolean language sql stable as $$
    select exists (select 1 from pg_trigger where tgrelid = 'jobs'::regclass and tgname = 'count_insert')
$$;

do $$
declare
    counted constant text :=
        'with small as materialized ('
        'select l.list, l.key, j.chunk, j.state, sum(j.n) as n '
        'from (select owner, model_id, provider_id, state, ordinal >> 12 as chunk, sum(n) as n from (%1$s) r '
        'group by owner, model_id, provider_id, state, ordinal >> 12) j cross join lateral (values '
        '(0::smallint, ''''::bytea), (1::smallint, int8send(j.model_id)), (2::smallint, j.owner), '
        '(3::smallint, int8send(j.provider_id))) as l (list, key) '
        'where l.list <> 3 or j.provider_id > 0 '
        'group by l.list, l.key, j.chunk, j.state having sum(j.n) <> 0) '
        'insert into job_counts as c (list, key, bits, chunk, state, jobs) '
        'select list, key, 12, chunk, state, n from small union all '
        'select list, key, 18, chunk >> 6, state, sum(n) from small group by list, key, chunk >> 6, state '
        'having sum(n) <> 0 '
        'on conflict (list, key, bits, chunk, state) do update set jobs = c.jobs + excluded.jobs; '
        'insert into owner_sums as s (owner, model_id, jobs, completed, escrowed) '
        'select j.owner, j.model_id, sum(j.n), coalesce(sum(j.n) filter (where j.state = 2), 0), sum(j.n * j.cap) '
        'from (%1$s) j group by j.owner, j.model_id '
        'having sum(j.n) <> 0 or sum(j.n) filter (where j.state = 2) <> 0 or sum(j.n * j.cap) <> 0 '
        'on conflict (owner, model_id) do update set jobs = s.jobs + excluded.jobs, '
        'completed = s.completed + excluded.completed, escrowed = s.escrowed + excluded.escrowed; ';
    -- What came to nothing leaves no row: the tables are those of a fresh count.
    emptied constant text :=
        'delete from job_counts c using (select distinct l.list, l.key, s.bits, j.ordinal >> s.bits as chunk, j.state '
        'from gone j cross join (values (12), (18)) as s (bits) cross join lateral (values '
        '(0::smallint, ''''::bytea), (1::smallint, int8send(j.model_id)), (2::smallint, j.owner), '
        '(3::smallint, int8send(j.provider_id))) as l (list, key)) g '
        'where c.list = g.list and c.key = g.key and c.bits = g.bits and c.chunk = g.chunk and c.state = g.state '
        'and c.jobs = 0; '
        'delete from owner_sums s using (select distinct owner, model_id from gone) g '
        'where s.owner = g.owner and s.model_id = g.model_id and s.jobs = 0; ';
    added constant text := 'select owner, model_id, provider_id, state, cap, ordinal, 1 as n from added';
    gone constant text := 'select owner, model_id, provider_id, state, cap, ordinal, -1 as n from gone';
begin
    execute format('create function count_jobs_insert() returns trigger language plpgsql as %L',
        'begin ' || format(counted, added) || 'return null; end');
    execute format('create function count_jobs_delete() returns trigger language plpgsql as %L',
        'begin ' || format(counted, gone) || emptied || 'return null; end');
    execute format('create function count_jobs_update() returns trigger language plpgsql as %L',
        'begin ' || format(counted, added || ' union all ' || gone) || emptied || 'return null; end');
    execute format('create function count_jobs_anew() returns void language plpgsql as %L',
        'begin truncate job_counts, owner_sums; '
        || format(counted, replace(added, 'from added', 'from jobs')) || 'end');
end
$$;

create function forget_job_counts() returns trigger language plpgsql as $$
begin
    truncate job_counts, owner_sums;
    return null;
end
$$;
create trigger forget_counts after truncate on jobs for each statement execute function forget_job_counts();

create or replace function build_job_indexes() returns void language plpgsql as $$
begin
    create index if not exists jobs_due on jobs (expires_at) where state = 0;
    perform mark_expired_jobs(block_time) from index_position;
    create index if not exists jobs_posted_block on jobs (posted_block);
    create index if not exists jobs_state on jobs (state, ordinal);
    create index if not exists jobs_model on jobs (model_id, state, ordinal);
    create index if not exists jobs_owner on jobs (owner, state, ordinal);
    create index if not exists jobs_provider on jobs (provider_id, state, ordinal) where provider_id > 0;
    create index if not exists jobs_open on jobs (model_id, posted_block, posted_log)
        where state = 0 and designated = 0;
    create index if not exists jobs_designated on jobs (designated, model_id, posted_block, posted_log)
        where state = 0 and designated > 0;
    create index if not exists jobs_claimed on jobs (claimed_at) where state = 1;
    create index if not exists jobs_expired on jobs (expires_at) where ended_because = 5;
    if not jobs_are_counted() then
        perform count_jobs_anew();
        create trigger count_insert after insert on jobs referencing new table as added
            for each statement execute function count_jobs_insert();
        create trigger count_update after update on jobs referencing old table as gone new table as added
            for each statement execute function count_jobs_update();
        create trigger count_delete after delete on jobs referencing old table as gone
            for each statement execute function count_jobs_delete();
    end if;
end
$$;
create or replace function drop_job_indexes() returns void language plpgsql as $$
begin
    drop index if exists jobs_due, jobs_posted_block, jobs_state, jobs_model, jobs_owner, jobs_provider, jobs_open,
        jobs_designated, jobs_claimed, jobs_expired;
    drop trigger if exists count_insert on jobs;
    drop trigger if exists count_update on jobs;
    drop trigger if exists count_delete on jobs;
end
$$;
select build_job_indexes();
