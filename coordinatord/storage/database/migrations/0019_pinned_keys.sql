-- least release: 0.1.0
-- For stores whose objects go by their content alone (plain S3, Kubo): which key holds which content. Several keys may
-- hold one content, which leaves the store with the last of them.
create table pinned_keys (
  key text collate "C" primary key,
  cid text not null
);
create index pinned_keys_cid on pinned_keys (cid);
