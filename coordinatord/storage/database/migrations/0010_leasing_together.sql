-- Polls come by the hundred, and most of what one costs is its statements: those that wait at the same time are answered
-- by one call, which does for all of them what it would do for one.
drop function poll_jobs(
    bigint, bigint, bigint, interval, bigint, bigint, numeric, numeric, bytea, bigint, bigint, bigint);

-- What each provider holds of a model, and what it is newly leased. Every (provider, model) is named once. The filters
-- are of all polls of the call.
--
-- One statement of this function sees what those before it waited for, which one large statement would not: polls of one
-- provider take turns, and then count what the other took. Rows that another call is about to lease are skipped instead
-- of waited for.
--
-- `after_blocks` and `after_logs` are a place in the order of open bids before which nothing was to be had a moment ago
-- (the same for all polls of a model): where many are leased, passing over them is what a poll costs. When what comes
-- after does not suffice, all are looked at.
--
-- A provider is leased what it may claim: nothing while it is not listed or not allowed the model, and no more than its
-- capacity leaves it.
create function poll_jobs(
    pollers bigint[], models bigint[], slots bigint[], after_blocks bigint[], after_logs bigint[],
    lease interval, at_time bigint, custody bigint,
    least_in numeric, least_out numeric, of_owner bytea, posted_until bigint
) returns table (poller bigint, model bigint, leased_job bytea, is_new boolean) language plpgsql rows 32
-- The order of the two partial indexes is the order of leasing, and a poll wants few rows: reading them in that order is
-- right however many there are. Left to estimates, plans change with the table's statistics; and making one anew for
-- each call costs more than the call.
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
declare
    rooms bigint[];  -- how many more each may be leased
    chosen bytea[];
    chosen_by bigint[];  -- places in `pollers`
    taken bytea[];
    takers bigint[];
    taken_models bigint[];
begin
    perform pg_advisory_xact_lock(k.key) from (  -- in one order for all calls, or two of them wait for each other
        select distinct hashtextextended('poll ' || a.id::text, 0) as key from unnest(pollers) as a(id) order by 1) k;
    select array_agg(l.job_id), array_agg(l.provider_id), array_agg(l.model_id) into taken, takers, taken_models
        from unnest(pollers, models) as a(provider_id, model_id)
        join leases l on l.provider_id = a.provider_id and l.model_id = a.model_id
            and l.expires_at > clock_timestamp()
        join jobs j on j.job_id = l.job_id and j.state = 0 and j.expires_at >= at_time
            and (j.designated <> 0 or custody is null or j.posted_block > custody);
    return query select t.*, false from unnest(takers, taken_models, taken) as t;
    select array_agg(least(a.wanted, 1000, coalesce((
            select greatest(1, v.reputation * least(v.requested, v.ceiling) / 1000) - v.active_jobs
            from providers v where v.provider_id = a.provider_id and v.listed
                and (v.allow_all_models or exists (select 1 from provider_models x
                    where x.provider_id = a.provider_id and x.model_id = a.model_id))
        ), 0)) order by a.place) into rooms
        from unnest(pollers, models, slots) with ordinality as a(provider_id, model_id, wanted, place);
    -- A call that committed while this statement looked may have leased the same jobs: what was lost to it is looked for
    -- again, which sees its leases.
    for attempt in 1 .. 10 loop
        select array_agg(a.room - (select count(*) from unnest(takers, taken_models) as t(provider_id, model_id)
                where t.provider_id = a.provider_id and t.model_id = a.model_id) order by a.place) into rooms
            from unnest(pollers, models, rooms) with ordinality as a(provider_id, model_id, room, place);
        exit when 0 >= all (rooms);
        with asked as (
            select a.*, sum(a.room) over (partition by a.model_id order by a.place) as until
            from unnest(pollers, models, rooms, after_blocks, after_logs) with ordinality
                as a(provider_id, model_id, room, after_block, after_log, place)
            where a.room > 0),
        bids as (
            select m.model_id, b.*, row_number() over (partition by m.model_id order by b.posted_block, b.posted_log) as nth
            from (select a.model_id, a.after_block, a.after_log, sum(a.room) as room
                from asked a group by a.model_id, a.after_block, a.after_log) m
            cross join lateral (
                select j.job_id, j.posted_block, j.posted_log from jobs j
                where j.model_id = m.model_id and j.state = 0 and j.designated = 0 and j.expires_at >= at_time
                    and (j.posted_block, j.posted_log) > (m.after_block, m.after_log)
                    and (custody is null or j.posted_block > custody)
                    and (least_in is null or j.rate_in >= least_in) and (least_out is null or j.rate_out >= least_out)
                    and (of_owner is null or j.owner = of_owner)
                    and (posted_until is null or j.posted_block <= posted_until)
                    and not exists (
                        select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp())
                order by j.posted_block, j.posted_log limit m.room for no key update of j skip locked) b),
        reserved as (
            select a.place, b.* from asked a cross join lateral (
                select j.job_id, j.posted_block, j.posted_log from jobs j
                where j.model_id = a.model_id and j.state = 0 and j.designated = a.provider_id and j.designated > 0
                    and j.expires_at >= at_time
                    and (least_in is null or j.rate_in >= least_in) and (least_out is null or j.rate_out >= least_out)
                    and (of_owner is null or j.owner = of_owner)
                    and (posted_until is null or j.posted_block <= posted_until)
                    and not exists (
                        select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp())
                order by j.posted_block, j.posted_log limit a.room for no key update of j skip locked) b),
        oldest as (
            select c.job_id, c.place, a.room,
                row_number() over (partition by c.place order by c.posted_block, c.posted_log) as nth
            from (select a.place, b.job_id, b.posted_block, b.posted_log
                    from bids b join asked a on a.model_id = b.model_id and b.nth > a.until - a.room and b.nth <= a.until
                union all table reserved) c
            join asked a on a.place = c.place)
        select array_agg(o.job_id), array_agg(o.place) into chosen, chosen_by
            from (select * from oldest order by job_id) o where o.nth <= o.room;
        with put as (
            insert into leases as l (job_id, provider_id, model_id, expires_at)
            select c.job_id, pollers[c.place], models[c.place], clock_timestamp() + lease
            from unnest(chosen, chosen_by) as c(job_id, place)
            on conflict (job_id) do update set provider_id = excluded.provider_id, model_id = excluded.model_id,
                expires_at = excluded.expires_at
                where l.expires_at <= clock_timestamp()
            returning l.job_id, l.provider_id, l.model_id)
        select array_agg(p.job_id), array_agg(p.provider_id), array_agg(p.model_id) into taken, takers, taken_models
            from put p;
        return query select t.*, true from unnest(takers, taken_models, taken) as t;
        if coalesce(cardinality(taken), 0) = coalesce(cardinality(chosen), 0) then  -- none was lost
            exit when -1 >= all (after_blocks) or cardinality(taken) = (
                select sum(a.room) from unnest(rooms) as a(room) where a.room > 0);
            after_blocks := array_fill(-1::bigint, array[cardinality(after_blocks)]);
        end if;
    end loop;
end
$$;

-- Nothing reads by it: lapsed leases are dropped by one look at all of them, and each index is paid for by every lease.
drop index leases_expiry;
