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
    purpose text not null,               -- 'relay', or 'fill' for a self-transfer that closes a gap
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
    ended_at timestamptz
);
create unique index relays_live on relays (dedupe) where state in ('queued', 'signed');
create index relays_queue on relays (priority, id) where state = 'queued';
create index relays_subject on relays (subject) where state in ('queued', 'signed');
create index relays_tx on relays (tx_id);
create index relays_ended on relays (ended_at) where ended_at is not null;
