-- Whose gas is spent, and whose money is promised: every relay names its signer, gas that was really spent is booked to
-- them, and one that is over a budget, or beyond its owner's balance, does not get into the outbox.

alter table relays
    add column signer bytea,                          -- null: the coordinator's own (reclaims)
    add column gas_estimate bigint not null default 0,  -- counts until the real figure is booked; its weight in a shared transaction
    add column newcomer boolean not null default false, -- its signer had earned nothing when it came: counts for all newcomers
    add column amount numeric(78),                    -- of a post: what its claim will collect from the owner
    add column mined_block bigint;                    -- of a mined one

create index relays_signer on relays (signer) include (kind, gas_estimate)
    where state in ('queued', 'signed') and signer is not null;
create index relays_newcomers on relays (newcomer) include (gas_estimate)
    where state in ('queued', 'signed') and newcomer;
create index relays_posted on relays (signer, mined_block) include (amount) where state = 'mined' and kind = 'post';

-- Gas by signer, hour (of the Unix time) and kind. Two signers are nobody's address: '' is the coordinator itself,
-- '\x00' are all newcomers together, whose gas is booked to themselves as well.
create table gas_spent (
    signer bytea not null,
    hour bigint not null,
    kind text not null,
    gas bigint not null,
    primary key (signer, hour, kind)
);
create index gas_spent_hour on gas_spent (hour);

-- What a mined transaction put into gas_spent: a reorganisation takes exactly that out again.
create table gas_bookings (
    tx_id bigint not null references relay_txs on delete cascade,
    signer bytea not null,
    kind text not null,
    newcomer boolean not null,
    hour bigint not null,
    gas bigint not null,
    primary key (tx_id, signer, kind, newcomer)
);

create function current_hour() returns bigint language sql volatile as $$
    select floor(extract(epoch from clock_timestamp()) / 3600)::bigint
$$;

create function kinds_of_budget(budget text) returns text[] language sql immutable as $$
    select case budget
        when 'posts' then array['post']
        when 'cancels' then array['cancel']
        when 'work' then array['claim', 'settle', 'fail']
        when 'upkeep' then array['set_identity', 'request_capacity', 'publish']
        else array['post', 'cancel', 'set_identity', 'request_capacity', 'publish']  -- 'newcomers'
    end
$$;

-- Estimates of what is queued or signed.
create function gas_under_way(spender bytea, budget text) returns bigint language sql stable as $$
    select case when budget = 'newcomers' then
        (select coalesce(sum(r.gas_estimate), 0)::bigint from relays r
            where r.state in ('queued', 'signed') and r.newcomer)
    else
        (select coalesce(sum(r.gas_estimate), 0)::bigint from relays r
            where r.state in ('queued', 'signed') and r.signer = spender and r.kind = any(kinds_of_budget(budget)))
    end
$$;

-- Seconds until so much gas may be spent, 0 for now: until enough has fallen out of the hour, and out of the last day
-- (24 hours of the clock). What is under way counts as spent just now. The first of an hour and of a day passes whatever
-- it takes, so that no request waits for ever.
create function gas_budget_wait(spender bytea, budget text, estimate bigint, hour_limit bigint, day_limit bigint)
returns integer language plpgsql volatile as $$
declare
    now_secs bigint := floor(extract(epoch from clock_timestamp()));
    now_hour bigint := now_secs / 3600;
    under_way bigint;
    in_hour bigint;
    in_day bigint;
    frees bigint;
    wait bigint := 0;
begin
    if day_limit is null then
        return 0;
    end if;
    under_way := gas_under_way(spender, budget);
    select coalesce(sum(s.gas) filter (where s.hour = now_hour), 0), coalesce(sum(s.gas), 0) into in_hour, in_day
        from gas_spent s
        where s.signer = spender and s.hour > now_hour - 24 and s.kind = any(kinds_of_budget(budget));
    in_hour := in_hour + under_way;
    in_day := in_day + under_way;
    if in_hour > 0 and in_hour + estimate > hour_limit then
        wait := (now_hour + 1) * 3600 - now_secs;
    end if;
    if in_day > 0 and in_day + estimate > day_limit then
        select min(s.hour) into frees from (
            select x.hour, sum(sum(x.gas)) over (order by x.hour) as gone from gas_spent x
            where x.signer = spender and x.hour > now_hour - 24 and x.kind = any(kinds_of_budget(budget))
            group by x.hour) s
            where in_day - s.gone + estimate <= day_limit or s.gone >= in_day;
        wait := greatest(wait, (coalesce(frees, now_hour) + 24) * 3600 - now_secs);
    end if;
    return wait;
end
$$;

-- What an owner's posts will collect that the index does not show yet: those under way, and those mined above `position`.
create function unindexed_posts(of_owner bytea, "position" bigint) returns numeric language sql stable as $$
    select coalesce((select sum(r.amount) from relays r
            where r.signer = of_owner and r.kind = 'post' and r.state in ('queued', 'signed')
            and not exists (select from jobs j where j.job_id = r.subject and j.posted_block <= "position")), 0)
        + coalesce((select sum(r.amount) from relays r
            where r.signer = of_owner and r.kind = 'post' and r.state = 'mined' and r.mined_block > "position"), 0)
$$;

-- Apart, as the other secondary indexes of `jobs` are: a first backfill goes faster without them.
create function build_owner_indexes() returns void language sql as $$
    create index if not exists jobs_owner_open on jobs (owner, expires_at) include (cap, fee_bps, gas_fee)
        where state = 0;
    create index if not exists jobs_owner_settled on jobs (owner, claimed_at) where state = 2;
    create index if not exists jobs_provider_settled on jobs (provider_id, claimed_at) where state = 2;
$$;
create function drop_owner_indexes() returns void language sql as $$
    drop index if exists jobs_owner_open, jobs_owner_settled, jobs_provider_settled;
$$;
select build_owner_indexes();

-- As the function of this name with fewer parameters, which processes of an older release go on calling, and two more
-- reasons to refuse. Limits that are null do not count.
create function submit_relays(
    kinds text[], subjects bytea[], dedupes bytea[], targets bytea[], calldatas bytea[], priorities smallint[],
    signers bytea[], estimates bigint[], newcomers boolean[],
    budgets text[], hour_limits bigint[], day_limits bigint[], all_hour_limits bigint[], all_day_limits bigint[],
    amounts numeric[], headrooms numeric[], positions bigint[],
    max_depth integer, max_per_subject integer
) returns table (outcome text, relay_id bigint) language plpgsql as $$
declare
    depth integer;
    inserted boolean := false;
begin
    perform lock_outbox();
    select count(*) into depth from relays where state = 'queued' and priority < 3;
    for i in 1 .. cardinality(kinds) loop
        select id into relay_id from relays where dedupe = dedupes[i] and state in ('queued', 'signed');
        if found then
            outcome := 'joined';
        elsif (select count(*) from relays where subject = subjects[i] and state in ('queued', 'signed'))
                >= max_per_subject then
            outcome := 'subject_busy';
        elsif depth >= max_depth then
            outcome := 'queue_full';
        elsif day_limits[i] is not null
                and gas_budget_wait(signers[i], budgets[i], estimates[i], hour_limits[i], day_limits[i]) > 0 then
            outcome := 'over_budget';
        elsif newcomers[i] and all_day_limits[i] is not null
                and gas_budget_wait('\x00', 'newcomers', estimates[i], all_hour_limits[i], all_day_limits[i]) > 0 then
            outcome := 'over_all_newcomers';
        elsif headrooms[i] is not null and unindexed_posts(signers[i], positions[i]) + amounts[i] > headrooms[i] then
            outcome := 'insolvent';
        else
            insert into relays (kind, subject, dedupe, target, calldata, priority, signer, gas_estimate, newcomer, amount)
            values (kinds[i], subjects[i], dedupes[i], targets[i], calldatas[i], priorities[i], signers[i], estimates[i],
                newcomers[i], amounts[i])
            returning id into relay_id;
            outcome := 'queued';
            depth := depth + 1;
            inserted := true;
        end if;
        return next;
    end loop;
    if inserted then
        perform pg_notify('relay_queued', '');
    end if;
end
$$;
