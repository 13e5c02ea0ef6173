create table nonces (
    nonce text primary key,
    address bytea not null,
    caller text not null,                -- who asked, so that a stranger's requests evict the stranger's own first
    issued_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
);
create index nonces_address on nonces (address, issued_at);
create index nonces_expiry on nonces (expires_at);

create table sessions (
    token_hash bytea primary key,        -- sha256 of the token: a stolen database honours nobody
    address bytea not null,
    provider_id bigint,                  -- set for a provider session
    expires_at timestamptz not null
);
create index sessions_address on sessions (address, expires_at);
create index sessions_expiry on sessions (expires_at);
