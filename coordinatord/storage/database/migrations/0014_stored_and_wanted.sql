-- How much is kept for whom: bytes and rows of each owner, summed as they change, so that a bound costs one look; and
-- what is kept short because nothing came of it.

alter table objects
    add column owner bytea not null default '',
    add column decided boolean not null default false;  -- its job has ended, and expires_at says what that means
alter table files add column decided boolean not null default false;  -- the same of the job that it is held for
alter table batches add column lines integer not null default 0;  -- of its input file

create index objects_undecided on objects (subject) where attached and not decided;
create index files_undecided on files (held_for) where attached and not decided and held_for is not null;
create index batches_input on batches (input_file_id);

create table stored (
    owner bytea not null,
    kind text not null,                  -- containers, results, inputs, batch_files, batches
    bytes bigint not null,
    rows bigint not null,
    primary key (owner, kind)
);

do $$
declare
    counted constant text[][] := array[
        ['objects', 'case when t.key like ''containers/%'' then ''containers'' else ''results'' end', 't.bytes', '1'],
        ['files', 'case t.purpose when ''input'' then ''inputs'' when ''result'' then ''results'' else ''batch_files'' end',
            't.bytes', '1'],
        ['batches', '''batches''', 'octet_length(t.metadata)', '1 + t.lines']];
    entry text[];
    change text[];
    side text;
    part text;
    parts text;
begin
    foreach entry slice 1 in array counted loop
        foreach change slice 1 in array array[
            ['insert', 'new table as added', '', 'added'],
            ['update', 'old table as gone new table as added', 'gone', 'added'],
            ['delete', 'old table as gone', 'gone', '']]
        loop
            parts := '';
            foreach side in array array['gone', 'added'] loop
                if side = any(change[3:4]) then
                    part := format('select t.owner, %s as kind, %s(%s)::bigint as bytes, %s(%s)::bigint as rows from %s t',
                        entry[2], case side when 'gone' then '-' else '' end, entry[3],
                        case side when 'gone' then '-' else '' end, entry[4], side);
                    parts := parts || case when parts = '' then '' else ' union all ' end || part;
                end if;
            end loop;
            -- In one order for all writers, or two of them wait for each other.
            execute format(
                'create function count_%1$s_%2$s() returns trigger language plpgsql as $f$ begin '
                'insert into stored as s (owner, kind, bytes, rows) select x.owner, x.kind, sum(x.bytes), sum(x.rows) '
                'from (%3$s) x group by x.owner, x.kind having sum(x.bytes) <> 0 or sum(x.rows) <> 0 '
                'order by x.owner, x.kind on conflict (owner, kind) do update '
                'set bytes = s.bytes + excluded.bytes, rows = s.rows + excluded.rows; return null; end $f$',
                entry[1], change[1], parts);
            execute format(
                'create trigger count_%2$s after %2$s on %1$I referencing %3$s for each statement '
                'execute function count_%1$s_%2$s()', entry[1], change[1], change[2]);
        end loop;
        execute format(
            'insert into stored as s (owner, kind, bytes, rows) select t.owner, %s, sum(%s), sum(%s) from %I t group by 1, 2 '
            'on conflict (owner, kind) do update set bytes = s.bytes + excluded.bytes, rows = s.rows + excluded.rows',
            entry[2], entry[3], entry[4], entry[1]);
    end loop;
end
$$;

-- Who has earned more room: an owner of a settled job, a listed provider, or one that has settled.
create function has_earned(wallet bytea) returns boolean language sql stable as $$
    select exists (select from jobs j where j.owner = wallet and j.state = 2)
        or exists (select from providers v where v.operator = wallet and (v.listed
            or exists (select from jobs j where j.provider_id = v.provider_id and j.state = 2)))
$$;

-- Whether a provider asks for orders like this one: for the model and window, at these rates or lower ones. One that has
-- no asks at all has not said what it wants, and is taken to want everything.
create function meets_ask(provider bigint, model bigint, window_secs bigint, in_rate numeric, out_rate numeric)
returns boolean language sql stable as $$
    select exists (select from asks k where k.provider_id = provider and k.model_id = model and k.sla = window_secs
        and k.rate_in <= in_rate and k.rate_out <= out_rate)
        or not exists (select from asks k where k.provider_id = provider)
$$;

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
-- Orders that are designated to a provider and do not meet its asks are leased last, and what it holds of them does not
-- count: whoever designates them cannot keep it from what it asked for.
--
-- A provider is leased what it may claim: nothing while it is not listed or not allowed the model, and no more than its
-- capacity leaves it.
create or replace function poll_jobs(
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
    renewed bytea[] := '{}';  -- leased by this call: what is not counted as held must not be chosen twice
begin
    perform pg_advisory_xact_lock(k.key) from (  -- in one order for all calls, or two of them wait for each other
        select distinct hashtextextended('poll ' || a.id::text, 0) as key from unnest(pollers) as a(id) order by 1) k;
    select array_agg(l.job_id), array_agg(l.provider_id), array_agg(l.model_id) into taken, takers, taken_models
        from unnest(pollers, models) as a(provider_id, model_id)
        join leases l on l.provider_id = a.provider_id and l.model_id = a.model_id
            and l.expires_at > clock_timestamp()
        join jobs j on j.job_id = l.job_id and j.state = 0 and j.expires_at >= at_time
            and (j.designated <> 0 or custody is null or j.posted_block > custody)
            and (j.designated = 0 or meets_ask(j.designated, j.model_id, j.sla_secs, j.rate_in, j.rate_out));
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
        wanted as (
            select a.place, b.*, false as unwanted from asked a cross join lateral (
                select j.job_id, j.posted_block, j.posted_log from jobs j
                where j.model_id = a.model_id and j.state = 0 and j.designated = a.provider_id and j.designated > 0
                    and j.expires_at >= at_time
                    and meets_ask(j.designated, j.model_id, j.sla_secs, j.rate_in, j.rate_out)
                    and (least_in is null or j.rate_in >= least_in) and (least_out is null or j.rate_out >= least_out)
                    and (of_owner is null or j.owner = of_owner)
                    and (posted_until is null or j.posted_block <= posted_until)
                    and not exists (
                        select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp())
                order by j.posted_block, j.posted_log limit a.room for no key update of j skip locked) b),
        unwanted as (
            select a.place, b.*, true as unwanted from asked a cross join lateral (
                select j.job_id, j.posted_block, j.posted_log from jobs j
                where j.model_id = a.model_id and j.state = 0 and j.designated = a.provider_id and j.designated > 0
                    and j.expires_at >= at_time
                    and not meets_ask(j.designated, j.model_id, j.sla_secs, j.rate_in, j.rate_out)
                    and (least_in is null or j.rate_in >= least_in) and (least_out is null or j.rate_out >= least_out)
                    and (of_owner is null or j.owner = of_owner)
                    and (posted_until is null or j.posted_block <= posted_until)
                    and not exists (
                        select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp()
                        and (l.provider_id <> a.provider_id or j.job_id = any(renewed)))
                order by j.posted_block, j.posted_log limit a.room for no key update of j skip locked) b),
        oldest as (
            select c.job_id, c.place, a.room,
                row_number() over (partition by c.place order by c.unwanted, c.posted_block, c.posted_log) as nth
            from (select a.place, b.job_id, b.posted_block, b.posted_log, false as unwanted
                    from bids b join asked a on a.model_id = b.model_id and b.nth > a.until - a.room and b.nth <= a.until
                union all table wanted union all table unwanted) c
            join asked a on a.place = c.place)
        select array_agg(o.job_id), array_agg(o.place) into chosen, chosen_by
            from (select * from oldest order by job_id) o where o.nth <= o.room;
        with put as (
            insert into leases as l (job_id, provider_id, model_id, expires_at)
            select c.job_id, pollers[c.place], models[c.place], clock_timestamp() + lease
            from unnest(chosen, chosen_by) as c(job_id, place)
            on conflict (job_id) do update set provider_id = excluded.provider_id, model_id = excluded.model_id,
                expires_at = excluded.expires_at
                where l.expires_at <= clock_timestamp() or l.provider_id = excluded.provider_id
            returning l.job_id, l.provider_id, l.model_id)
        select array_agg(p.job_id), array_agg(p.provider_id), array_agg(p.model_id) into taken, takers, taken_models
            from put p;
        return query select t.*, true from unnest(takers, taken_models, taken) as t;
        renewed := renewed || coalesce(taken, '{}');
        if coalesce(cardinality(taken), 0) = coalesce(cardinality(chosen), 0) then  -- none was lost
            exit when -1 >= all (after_blocks) or cardinality(taken) = (
                select sum(a.room) from unnest(rooms) as a(room) where a.room > 0);
            after_blocks := array_fill(-1::bigint, array[cardinality(after_blocks)]);
        end if;
    end loop;
end
$$;
