-- What this deployment put into the pin store. A row is written before its upload begins, so that a crash leaves no
-- object that nobody knows of; the janitor removes what is not referenced by its deadline.
create table objects (
    key text primary key,                -- the store's key: containers/<job id>, results/<job id>, ...
    cid text,                            -- null until the store answered
    bytes bigint not null,
    sha256 bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null      -- short until its op is mined, then the retention period
);
create index objects_expiry on objects (expires_at);
create index objects_cid on objects (cid);
