-- How often live or lapsed sessions were removed or changed, by whatever means: a process that knows a session may rely on
-- it while this number stands. It moves with the transaction that takes the session back.
create table sessions_taken_back (
    times bigint not null,
    one boolean primary key default true check (one)
);
insert into sessions_taken_back (times) values (0);

create function count_sessions_taken_back() returns trigger language plpgsql as $$
begin
    if exists (select 1 from gone) then
        update sessions_taken_back set times = times + 1;
    end if;
    return null;
end
$$;
create trigger sessions_removed after delete on sessions referencing old table as gone
    for each statement execute function count_sessions_taken_back();
create trigger sessions_changed after update on sessions referencing old table as gone
    for each statement execute function count_sessions_taken_back();
