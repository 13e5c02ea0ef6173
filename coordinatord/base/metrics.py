"""All metrics of the coordinator. Other modules record values, and the operators' server exposes the metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

build_info = Gauge(
    "coordinatord_build_info", "Always 1, labelled with the running version", ["version"], registry=REGISTRY
)
task_failures = Counter(
    "coordinatord_task_failures_total",
    "Unexpected failures of background tasks, each followed by a restart",
    ["task"],
    registry=REGISTRY,
)
clock_ahead = Gauge(
    "coordinatord_clock_ahead_seconds",
    "Seconds that this machine's clock is ahead of the clock of the source",
    ["source"],
    registry=REGISTRY,
)

http_requests = Histogram(
    "coordinatord_http_request_seconds",
    "Time from the first byte of a request's head to the last byte of its answer",
    ["route", "method", "status"],
    registry=REGISTRY,
    buckets=_LATENCY_BUCKETS_S,
)

connections_ended = Counter(
    "coordinatord_connections_ended_total",
    "Connections, event streams and waiting polls that were ended or refused because of a limit or a shutdown",
    ["kind", "reason"],
    registry=REGISTRY,
)

relay_queue_depth = Gauge(
    "coordinatord_relay_queue_depth", "Relays waiting to be broadcast", ["priority"], registry=REGISTRY
)
relay_queue_age = Gauge(
    "coordinatord_relay_queue_age_seconds", "Age of the oldest relay waiting to be broadcast", registry=REGISTRY
)
relay_outcomes = Counter(
    "coordinatord_relay_outcomes_total",
    "Relays that have ended, by kind and outcome",
    ["kind", "outcome"],
    registry=REGISTRY,
)
relay_transactions_pending = Gauge(
    "coordinatord_relay_transactions_pending",
    "Transactions that were broadcast and are not mined yet",
    registry=REGISTRY,
)
relay_replacements = Counter(
    "coordinatord_relay_replacements_total",
    "Transactions replaced with a higher fee (reason fee), or by a self-transfer because no node accepts them",
    ["reason"],
    registry=REGISTRY,
)
relay_fees_above_ceiling = Gauge(
    "coordinatord_relay_fees_above_ceiling",
    "1 while the chain's fee exceeds RELAY_MAX_FEE_GWEI: exits wait, other ops are rejected",
    registry=REGISTRY,
)
relay_gas_price = Gauge(
    "coordinatord_relay_gas_price_wei",
    "Gas price that the next block requires, by part: base_fee and tip",
    ["part"],
    registry=REGISTRY,
)
relay_chained = Counter(
    "coordinatord_relay_chained_total",
    "Ops signed before an earlier op of the same job was mined, and ops refused because the earlier op failed",
    ["kind", "outcome"],
    registry=REGISTRY,
)
relay_mined_seconds = Histogram(
    "coordinatord_relay_mined_seconds",
    "Time from a relay's insertion to its receipt",
    ["kind"],
    registry=REGISTRY,
    buckets=_LATENCY_BUCKETS_S,
)
relay_gas = Counter(
    "coordinatord_relay_gas_total",
    "Gas that mined transactions used, by kind of op; gas of reorganised blocks stays counted",
    ["kind"],
    registry=REGISTRY,
)
budget_refusals = Counter(
    "coordinatord_budget_refusals_total",
    "Requests refused because a budget of gas or storage, or an owner's balance, is used up",
    ["budget"],
    registry=REGISTRY,
)
stored_bytes = Gauge(
    "coordinatord_stored_bytes", "Bytes kept for callers, by kind of content", ["kind"], registry=REGISTRY
)
relayer_funds = Gauge(
    "coordinatord_relayer_funds_wei",
    "Native balance of the relayer account, and the reserve below which it relays only exits and cancels",
    ["account", "kind"],
    registry=REGISTRY,
)
relayer_role = Gauge(
    "coordinatord_relayer_role",
    "1 while the registries accept the account as a relayer; otherwise nothing is posted or settled",
    ["account"],
    registry=REGISTRY,
)

index_lag = Gauge("coordinatord_index_lag_blocks", "Blocks of the chain that are not indexed yet", registry=REGISTRY)
chain_head = Gauge("coordinatord_chain_head_block", "Head of the chain, as the indexer last read it", registry=REGISTRY)
index_reorg_depth = Histogram(
    "coordinatord_index_reorg_depth_blocks",
    "Blocks undone by a reorganisation",
    registry=REGISTRY,
    buckets=(1, 2, 3, 5, 8, 13, 21, 34, 55, 128, 256),
)

event_listeners = Gauge(
    "coordinatord_event_listeners",
    "Open event streams and waiting polls, by kind",
    ["kind"],
    registry=REGISTRY,
)

webhook_late = Gauge(
    "coordinatord_webhook_late_seconds",
    "Time that the oldest event has waited to become messages, or the oldest message of a working endpoint to be sent",
    registry=REGISTRY,
)

database_connections = Gauge(
    "coordinatord_database_connections", "Pooled connections, by use", ["use"], registry=REGISTRY
)
database_standbys = Gauge(
    "coordinatord_database_standbys",
    "Connected standbys by state (synchronous, asynchronous, or hidden from this role), counted by the janitor",
    ["state"],
    registry=REGISTRY,
)
database_replay_lag = Gauge(
    "coordinatord_database_replay_lag_seconds",
    "Time that the slowest standby lags, measured by the janitor",
    ["server"],
    registry=REGISTRY,
)
database_promotions = Counter(
    "coordinatord_database_promotions_total",
    "Promotions of a standby that this process noticed when it acquired a role",
    registry=REGISTRY,
)
replica_reads = Counter(
    "coordinatord_replica_reads_total",
    "Reads sent to a standby, by outcome: answered, or repeated on the primary because the standby lagged or failed",
    ["outcome"],
    registry=REGISTRY,
)
store_requests = Histogram(
    "coordinatord_pin_store_request_seconds",
    "Time of a pin store request",
    ["operation", "outcome"],
    registry=REGISTRY,
    buckets=_LATENCY_BUCKETS_S,
)
rpc_requests = Histogram(
    "coordinatord_rpc_request_seconds",
    "Time of a JSON-RPC request",
    ["outcome"],
    registry=REGISTRY,
    buckets=_LATENCY_BUCKETS_S,
)
node_up = Gauge(
    "coordinatord_node_up", "1 while the node answers; 0 after three failures in a row", ["node"], registry=REGISTRY
)
node_lag = Gauge(
    "coordinatord_node_lag_blocks",
    "Blocks that the node is behind the others (negative: ahead), with several nodes",
    ["node"],
    registry=REGISTRY,
)
node_contradicted = Counter(
    "coordinatord_node_contradicted_total",
    "Answers of the node that two other nodes contradicted; each suspends the node for ten minutes",
    ["node"],
    registry=REGISTRY,
)
nodes_agreed = Gauge(
    "coordinatord_nodes_agreed",
    "Nodes that agreed on the last blocks or receipts read; 0 while the nodes contradict each other",
    ["of"],
    registry=REGISTRY,
)
signer_failing = Gauge(
    "coordinatord_signer_failing",
    "1 if the last requested signature failed, otherwise 0",
    ["account"],
    registry=REGISTRY,
)
roles_held = Gauge("coordinatord_role_held", "1 while this process holds the role", ["role"], registry=REGISTRY)
