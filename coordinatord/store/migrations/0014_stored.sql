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
