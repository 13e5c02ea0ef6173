-- What this deployment put into the pin store. A row is written before its upload begins, so that a crash leaves no
-- object that nobody knows of; the janitor removes what no live relay and no job refers to when its deadline passes.
--
-- A key is removed under a lease: `removing_until` is set first, and no upload of the same key begins before it has
-- lapsed or the row is gone. Otherwise the removal of one attempt could hit the upload of the next.
create table objects (
    key text primary key,                -- the store's key: containers/<job id>, results/<job id>/<sha256>, ...
    subject bytea not null,              -- the job it belongs to, which is also the subject of its relay
    cid text,                            -- null until the store answered
    bytes bigint not null,
    sha256 bytea not null,
    attached boolean not null default false,  -- its job is on the chain: kept for the retention period
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,     -- of an unattached one: until then its op may still be under way
    holders integer not null default 1,  -- requests that may still post what it holds
    removing_until timestamptz
);
create index objects_expiry on objects (expires_at);
create index objects_cid on objects (cid);
