-- The relayer's outbox. A relay (one op of one caller) is a row before anything is signed; a relay transaction (one
-- nonce of one account) carries one or more relays; each version of it (a fee bump) has its own bytes and hash.

create type relay_state as enum (
    'queued',     -- waits to be simulated and signed
    'signed',     -- rides in a transaction whose bytes are stored; may or may not have been broadcast
    'mined',      -- final unless its block is reorganised away: the op took effect
    'refused',    -- final: the chain refuses it (simulated, or reverted when mined); nothing took effect
    'dropped'     -- final: given up before signing (queue timeout, no funds, RPC trouble); nothing took effect
);

create table relay_txs (
    id bigint generated always as identity primary key,
    chain_id bigint not null,
    account bytea not null,
    nonce bigint not null,
    target bytea not null,
    calldata bytea not null,
    gas bigint not null,
    priority smallint not null,
    -- 'relay'; 'fill' for a self-transfer that closes a gap; 'foreign' for a nonce that somebody else used before we
    -- gave it out (a row all the same, so that the account's nonces are contiguous here)
    purpose text not null,
    created_at timestamptz not null default clock_timestamp(),
    broadcast_at timestamptz,            -- the last time a node took it
    mined_hash bytea,                    -- the version that was mined
    block_number bigint,
    block_hash bytea,
    succeeded boolean,
    lost boolean not null default false, -- its nonce was used by a transaction that is none of ours
    unique (chain_id, account, nonce)
);
create index relay_txs_pending on relay_txs (account, nonce) where block_number is null and not lost;
create index relay_txs_block on relay_txs (block_number) where block_number is not null;

create table relay_tx_versions (
    hash bytea primary key,
    tx_id bigint not null references relay_txs,
    raw bytea not null,
    max_fee numeric(39) not null,
    max_tip numeric(39) not null,
    fills boolean not null default false, -- a self-transfer: this version carries none of the relays
    created_at timestamptz not null default clock_timestamp()
);
create index relay_tx_versions_tx on relay_tx_versions (tx_id);

create table relays (
    id bigint generated always as identity primary key,
    kind text not null,                  -- post, claim, settle, fail, cancel, reclaim, set_identity, request_capacity, publish
    subject bytea not null,              -- what requests queue on: a job id, or an op's signer padded to 32 bytes
    dedupe bytea not null,               -- the same request again joins the live relay; never made of signature bytes
    target bytea not null,               -- the registry
    calldata bytea not null,
    priority smallint not null,          -- 0 exits (settle, fail, cancel, reclaim), 1 other ops, 2 posts, 3 batch posts
    state relay_state not null default 'queued',
    tx_id bigint references relay_txs,
    call_index integer,                  -- its place in relay(bytes[]); null when it is the whole transaction
    reason text,                         -- refused: the contract error's name; dropped: the code for the caller
    raw bytea,                           -- refused with an unknown error: the revert data
    created_at timestamptz not null default clock_timestamp(),
    queued_at timestamptz not null default clock_timestamp(),  -- its wait in the queue counts from here
    requeued integer not null default 0, -- times that it came back to the queue; then it rides alone, with more gas
    ended_at timestamptz
);
create unique index relays_live on relays (dedupe) where state in ('queued', 'signed');
create index relays_queue on relays (priority, id) where state = 'queued';
create index relays_subject on relays (subject) where state in ('queued', 'signed');
create index relays_tx on relays (tx_id);
create index relays_ended on relays (ended_at) where ended_at is not null;

-- One decision for each: join the live relay of the same request, refuse, or insert. The limits are counted, and a
-- count is true only while nobody else inserts: hence one submitter at a time. It costs nothing on top of NOTIFY,
-- which makes committing transactions wait for each other anyway. Whoever brings ended relays back to life (a reorg)
-- takes the same lock, because that can collide on relays_live.
create function lock_outbox() returns void language sql as $$
    select pg_advisory_xact_lock(x'52454c4159'::bigint)
$$;

create function submit_relays(
    kinds text[], subjects bytea[], dedupes bytea[], targets bytea[], calldatas bytea[], priorities smallint[],
    max_depth integer, max_per_subject integer
) returns table (outcome text, relay_id bigint) language plpgsql as $$
declare
    depth integer;
    inserted boolean := false;
begin
    perform lock_outbox();
    select count(*) into depth from relays where state = 'queued';
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
