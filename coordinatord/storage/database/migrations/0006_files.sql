-- What wallets uploaded, and the files that batches yielded. The store holds each under `files/<id>`. A row is written
-- before its upload begins (its `cid` is null until the store answered), so that whatever dies leaves nothing in the
-- store that nobody knows of: the janitor removes object and row when `expires_at` has passed.
create table files (
    id text primary key,                 -- file-<24 hex digits>
    owner bytea not null,
    purpose text not null check (purpose in ('input', 'result', 'batch', 'batch_output')),
    filename text not null,
    cid text,                            -- null until the store holds all of it
    commitment bytea,                    -- of an input: the `c` that its bytes commit to
    bytes bigint not null default 0,
    lines integer not null default 0,    -- of a batch or batch_output file: lines that are not blank
    attached boolean not null default false,  -- a job or a batch refers to it: kept for the retention period
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    upload_id text,                      -- the store's own upload, while its parts come in: aborted if nobody ends it
    held_for bytea,                      -- a job that is being posted or settled with it
    held_until timestamptz,              -- it is not removed before: the op may still be under way
    removing_until timestamptz           -- leased by a janitor that removes it
);
create index files_cid on files (owner, cid);
create index files_expiry on files (expires_at);
