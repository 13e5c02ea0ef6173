-- least release: 0.1.0
-- What is under way and what is booked, seen at one moment: a transaction that was recorded as mined between two looks
-- counted twice, and an owner within its budget was refused until the next hour.
create or replace function gas_budget_wait(
    spender bytea, budget text, estimate bigint, hour_limit bigint, day_limit bigint
) returns integer language plpgsql volatile as $$
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
    select gas_under_way(spender, budget), coalesce(sum(s.gas) filter (where s.hour = now_hour), 0), coalesce(sum(s.gas), 0)
        into under_way, in_hour, in_day from gas_spent s
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
