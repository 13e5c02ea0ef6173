-- A relay that came back to the queue remembers every transaction that carried it before, not the last alone: the bytes
-- of each are in the world, and a reorganisation may let any of them take effect after all.
create table relay_formers (
    relay_id bigint not null references relays on delete cascade,
    tx_id bigint not null,
    call_index integer,
    primary key (relay_id, tx_id)
);
create index relay_formers_tx on relay_formers (tx_id);
insert into relay_formers (relay_id, tx_id, call_index)
    select id, former_tx_id, former_call_index from relays where former_tx_id is not null;
-- The columns stay for as long as a process of the release before may run; nothing reads them any more.
drop index relays_former_tx;

-- What a live relay's request names beside its dedupe: the same request with other content is not relayed meanwhile. Of a
-- settle it is the content id, which is not signed: whoever copies the signature must not get another result mined.
alter table relays add column content bytea;

-- Exits are not dropped from the queue before this: they wait while fees are above the operator's ceiling.
alter table relays add column held_until timestamptz;

create index relays_ending on relays (subject)
    where state = 'mined' and kind in ('settle', 'fail', 'reclaim', 'cancel');

-- The transaction that ended a job, or that cancelled one that had expired, where this deployment relayed it or looked
-- it up: relays themselves are dropped after a week, and cancelling again a year later must not cost another one.
create table job_ends (
    job_id bytea primary key,
    tx_hash bytea not null
);
