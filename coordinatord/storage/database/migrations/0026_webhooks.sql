-- least release: 0.1.0
-- Webhooks: endpoints of owners, and an outbox of signed messages to them.
--
-- Messages are made from the event log by whichever process holds the row of `webhook_position`, and written in the
-- transaction that moves it on: none is made twice, none is left out. A process takes an endpoint for a turn by moving
-- its `not_before`, posts what is due, and writes down how that went. One that dies leaves the messages where they are:
-- they are posted again, under the same id, when the turn's time is over.
create table webhooks (
    id text primary key,                 -- whk_<24 hex digits>
    place bigint generated always as identity unique,
    owner bytea not null,
    url text not null,
    wanted text[] not null,              -- types of events; empty: all
    secret bytea not null,               -- sealed under WEBHOOKS_KEY: a stolen database signs nothing
    created_at timestamptz not null default clock_timestamp(),
    disabled_at timestamptz,
    disabled_because text check (disabled_because in ('gone', 'failing')),
    failing_since timestamptz,
    failures integer not null default 0, -- attempts in a row that failed
    last_attempt_at timestamptz,
    last_status smallint,
    waiting integer not null default 0,
    delivered bigint not null default 0,
    dropped bigint not null default 0,
    missed boolean not null default false,   -- messages were not written, because too many waited; it is told so
    quick boolean not null default false,    -- it answered its last turn well and at once
    due_at timestamptz,                      -- of its earliest message; null when none waits
    not_before timestamptz not null default clock_timestamp(),  -- end of a turn that goes on, or of a pause
    turn_at timestamptz generated always as (
        case when disabled_at is null and due_at is not null then greatest(due_at, not_before) end) stored,
    check ((disabled_at is null) = (disabled_because is null))
);
create index webhooks_owner on webhooks (owner, place);
create index webhooks_turn on webhooks (quick, turn_at) where turn_at is not null;

create table webhook_messages (
    id bigint generated always as identity primary key,
    webhook_id text not null references webhooks on delete cascade,
    message_id text not null,            -- msg_<32 hex digits>, the same for every attempt
    type text not null,
    body bytea not null,                 -- the same bytes for every attempt
    created_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0,
    due_at timestamptz not null default clock_timestamp()
);
create index webhook_messages_due on webhook_messages (webhook_id, due_at, id);

-- How far the event log is told. One row; it is locked by the process that tells.
create table webhook_position (
    one boolean primary key default true check (one),
    event_id bigint not null
);
insert into webhook_position (event_id) select max(id) from events;

-- Changes of batches that are to be told. Written by a trigger, so that processes of an older release write them, too.
create table webhook_batches (
    id bigint generated always as identity primary key,
    batch_id text not null,
    owner bytea not null,
    status text not null,
    happened timestamptz not null default clock_timestamp(),
    total integer,
    completed integer,
    failed integer,
    output_file_id text,
    error_file_id text
);
create function tell_webhooks_of_batch() returns trigger language plpgsql as $$
declare
    told text := case
        when new.failed_at is not null and old.failed_at is null then 'failed'
        when new.completed_at is not null and old.completed_at is null then 'completed'
        when new.expired_at is not null and old.expired_at is null then 'expired'
        when new.cancelled_at is not null and old.cancelled_at is null then 'cancelled'
        when new.cancelling_at is not null and old.cancelling_at is null then 'cancelling'
        when new.in_progress_at is not null and old.in_progress_at is null then 'in_progress'
    end;
    ended boolean := told in ('failed', 'completed', 'expired', 'cancelled');
begin
    if told is not null and exists (select from webhooks where owner = new.owner and disabled_at is null) then
        insert into webhook_batches (batch_id, owner, status, total, completed, failed, output_file_id, error_file_id)
        values (new.id, new.owner, told, case when ended then new.total end, case when ended then new.completed end,
            case when ended then new.failed end, new.output_file_id, new.error_file_id);
        perform pg_notify('webhooks_due', '');
    end if;
    return null;
end
$$;
create trigger batches_told after update of in_progress_at, cancelling_at, failed_at, completed_at, expired_at, cancelled_at
    on batches for each row execute function tell_webhooks_of_batch();
