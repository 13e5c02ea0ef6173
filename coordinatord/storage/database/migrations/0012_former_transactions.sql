-- A relay that came back to the queue remembers what carried it before. Those bytes are in the world: should a
-- reorganisation let them take effect after all, the relay took effect in them, whatever carries it by then.
alter table relays add column former_tx_id bigint, add column former_call_index integer;
create index relays_former_tx on relays (former_tx_id) where former_tx_id is not null;
create index relay_txs_lost on relay_txs (account) where lost;
