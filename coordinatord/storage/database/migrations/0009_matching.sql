-- Open bids and what is reserved for one provider, each in the order in which polls lease them.
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

-- A job whose payment cannot be had is leased to nobody: its row names provider 0 until it is worth another look.
alter table leases add column unpaid integer not null default 0;  -- how often in a row; each time doubles the wait

-- One poll: what the provider holds, and what it is newly leased. One statement of this function sees what those before
-- it waited for, which one large statement would not: polls of one provider take turns, and then count what the other
-- took. Rows that another poll is about to lease are skipped instead of waited for.
--
-- `after_block` and `after_log` are a place in the order of open bids before which nothing was to be had a moment ago: where
-- many are leased, passing over them is what a poll costs. When what comes after does not suffice, all are looked at.
--
-- A provider is leased what it may claim: nothing while it is not listed or not allowed the model, and no more than its
-- capacity leaves it.
create function poll_jobs(
    poller bigint, wanted_model bigint, slots bigint, lease interval, at_time bigint, custody bigint,
    least_in numeric, least_out numeric, of_owner bytea, posted_until bigint,
    after_block bigint, after_log bigint
) returns table (leased_job bytea, is_new boolean) language plpgsql rows 4
-- The order of the two partial indexes is the order of leasing, and a poll wants few rows: reading them in that order is
-- right however many there are. Left to estimates, plans change with the table's statistics.
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    room bigint;
    held bigint;
    chosen bytea[];
    taken bigint;
begin
    perform pg_advisory_xact_lock(hashtextextended('poll ' || poller::text, 0));
    return query
        select l.job_id, false from leases l join jobs j on j.job_id = l.job_id
        where l.provider_id = poller and l.model_id = wanted_model and l.expires_at > clock_timestamp()
            and j.state = 0 and j.expires_at >= at_time
            and (j.designated <> 0 or custody is null or j.posted_block > custody);
    get diagnostics held = row_count;
    select greatest(1, v.reputation * least(v.requested, v.ceiling) / 1000) - v.active_jobs into room
        from providers v where v.provider_id = poller and v.listed
            and (v.allow_all_models or exists (select 1 from provider_models x
                where x.provider_id = poller and x.model_id = wanted_model));
    room := least(slots, coalesce(room, 0), 1000) - held;
    if room <= 0 then
        return;
    end if;
    -- A poll that committed while this statement looked may have leased the same jobs: what was lost to it is looked for
    -- again, which sees its leases.
    for attempt in 1 .. 10 loop
        with bids as (
            select j.job_id, j.posted_block, j.posted_log from jobs j
            where j.model_id = wanted_model and j.state = 0 and j.designated = 0 and j.expires_at >= at_time
                and (j.posted_block, j.posted_log) > (after_block, after_log)
                and (custody is null or j.posted_block > custody)
                and (least_in is null or j.rate_in >= least_in) and (least_out is null or j.rate_out >= least_out)
                and (of_owner is null or j.owner = of_owner)
                and (posted_until is null or j.posted_block <= posted_until)
                and not exists (select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp())
            order by j.posted_block, j.posted_log limit room for no key update of j skip locked),
        reserved as (
            select j.job_id, j.posted_block, j.posted_log from jobs j
            where j.model_id = wanted_model and j.state = 0 and j.designated = poller and j.designated > 0
                and j.expires_at >= at_time
                and (least_in is null or j.rate_in >= least_in) and (least_out is null or j.rate_out >= least_out)
                and (of_owner is null or j.owner = of_owner)
                and (posted_until is null or j.posted_block <= posted_until)
                and not exists (select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp())
            order by j.posted_block, j.posted_log limit room for no key update of j skip locked),
        oldest as (
            select b.job_id from (table bids union all table reserved) b
            order by b.posted_block, b.posted_log limit room)
        select array_agg(o.job_id) into chosen from oldest o;
        return query
            insert into leases as l (job_id, provider_id, model_id, expires_at)
            select c.job_id, poller, wanted_model, clock_timestamp() + lease from unnest(chosen) as c(job_id)
            on conflict (job_id) do update set provider_id = excluded.provider_id, model_id = excluded.model_id,
                expires_at = excluded.expires_at
                where l.expires_at <= clock_timestamp()
            returning l.job_id, true;
        get diagnostics taken = row_count;
        if taken = coalesce(cardinality(chosen), 0) then  -- none was lost
            exit when taken = room or after_block < 0;
            after_block := -1;
        end if;
        room := room - taken;
    end loop;
end
$$;
