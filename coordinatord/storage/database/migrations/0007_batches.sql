-- Batches: an uploaded file of submissions, one a line, posted and followed as one.
--
-- `batches` is what its owner sees and may change (cancel). `batch_work` is the workers' side: a worker locks its row for
-- the length of one small transaction (FOR UPDATE SKIP LOCKED), so that one worker at a time moves a batch, a death
-- frees it at once, and no request ever waits for a worker. `batch_lines` has one record per line of the file.

create table batches (
    id text primary key,                 -- batch_<24 hex digits>
    place bigint generated always as identity unique,  -- newest first, and cursors of pages
    owner bytea not null,
    endpoint text not null,
    input_file_id text not null,
    completion_window text not null,
    metadata text not null,              -- JSON
    idempotency_key text,
    request_hash bytea not null,         -- of what was asked for; the same key with another one is refused
    errors text,                         -- JSON: why the input file as a whole was refused
    output_file_id text,
    error_file_id text,
    -- Set when every line has ended: by then its status and counts are settled, and the files say the same.
    ends_as text check (ends_as in ('completed', 'expired', 'cancelled')),
    total integer not null default 0,
    completed integer not null default 0,
    failed integer not null default 0,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    expired_at timestamptz,
    cancelling_at timestamptz,
    cancelled_at timestamptz,
    unique (owner, idempotency_key)
);
create index batches_owner on batches (owner, place desc);

create table batch_work (
    batch_id text primary key references batches,
    due_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0, -- in a row that ended in trouble
    bytes_done bigint not null default 0,  -- how far the input file is recorded: what follows is read from here
    lines_done integer not null default 0,
    expanded boolean not null default false  -- every line has its record
);
create index batch_work_due on batch_work (due_at);

create table batch_lines (
    batch_id text not null references batches,
    line integer not null,               -- counted from 1, blank lines too
    job_id bytea,                        -- null when the line does not say
    relay_id bigint,                     -- the post; rides with what the outbox says of it
    code text,                           -- why it did not settle; for a posted line set when the batch ends
    message text,
    late boolean not null default false, -- it ended because the batch's window did
    result text,                         -- JSON: how it settled; set when the batch ends
    primary key (batch_id, line)
);
-- One post per job and batch: another line of the same job is a duplicate.
create unique index batch_lines_posted on batch_lines (batch_id, job_id) where relay_id is not null;
create index batch_lines_relay on batch_lines (relay_id) where relay_id is not null;
create index batch_lines_job on batch_lines (job_id) where relay_id is not null;

create index relays_dropped on relays (id) where state = 'dropped';

-- Posts of batches have a bound of their own, so that they never fill the queue that single requests wait in.
create or replace function submit_relays(
    kinds text[], subjects bytea[], dedupes bytea[], targets bytea[], calldatas bytea[], priorities smallint[],
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
        else
            insert into relays (kind, subject, dedupe, target, calldata, priority)
            values (kinds[i], subjects[i], dedupes[i], targets[i], calldatas[i], priorities[i])
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
