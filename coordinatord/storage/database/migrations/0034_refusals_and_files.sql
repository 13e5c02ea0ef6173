-- least release: 0.1.0
-- Code of the answer by which nodes refused every sending of a transaction so far (`rate_limited`, `rpc_internal`,
-- `endpoint_refused`). Null before the first sending and once a node may have the bytes. Callers of its relays then
-- read a 503 instead of a 504.
alter table relay_txs add column refusal text;

-- The end of a job no longer shortens the life of a file: its owner was told when the file expires.
drop index files_undecided;
