"""Every metric of the coordinator. Other modules record them, and the operators' server exposes them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

build_info = Gauge("coordinatord_build_info", "1, by the version that runs", ["version"], registry=REGISTRY)
unknown_variables = Gauge(
    "coordinatord_unknown_variables", "Environment variables that look like settings but are unknown", registry=REGISTRY
)
task_failures = Counter(
    "coordinatord_task_failures_total",
    "Unexpected failures of background tasks, each followed by a restart",
    ["task"],
    registry=REGISTRY,
)
clock_ahead = Gauge(
    "coordinatord_clock_ahead_seconds",
    "Time that this clock is ahead of another's, by whose",
    ["source"],
    registry=REGISTRY,
)

http_requests = Histogram(
    "coordinatord_http_request_seconds",
    "Time from the first byte of a request's head to the last byte of its answer",
    ["route", "method", "status"],
    registry=REGISTRY,
    buckets=_LATENCY,
)
http_body_bytes = Gauge(
    "coordinatord_http_body_bytes_held", "Bytes of request bodies held in memory", registry=REGISTRY
)

http_connections = Gauge("coordinatord_http_connections", "Connections of callers that are open", registry=REGISTRY)
http_connections_ended = Counter(
    "coordinatord_http_connections_ended_total",
    "Connections ended for want of room: one without a request for a new one, or the new one",
    ["reason"],
    registry=REGISTRY,
)

relay_queue_depth = Gauge(
    "coordinatord_relay_queue_depth", "Relays waiting to be broadcast", ["priority"], registry=REGISTRY
)
relay_queue_age = Gauge(
    "coordinatord_relay_queue_age_seconds", "Age of the oldest relay waiting to be broadcast", registry=REGISTRY
)
relay_outcomes = Counter(
    "coordinatord_relay_outcomes_total", "Relays ended, by kind and outcome", ["kind", "outcome"], registry=REGISTRY
)
relay_transactions_pending = Gauge(
    "coordinatord_relay_transactions_pending", "Transactions broadcast and not mined", registry=REGISTRY
)
relay_former_pending = Gauge(
    "coordinatord_relay_former_pending",
    "Transactions of an account of FORMER_RELAYER_KEYS that are not mined",
    ["account"],
    registry=REGISTRY,
)
relay_replacements = Counter(
    "coordinatord_relay_replacements_total", "Transactions sent again with a higher fee", registry=REGISTRY
)
relay_given_up = Counter(
    "coordinatord_relay_given_up_total",
    "Transactions that no node accepts, replaced by a self-transfer; their relays are sent again",
    ["reason"],
    registry=REGISTRY,
)
relay_fees_above_ceiling = Gauge(
    "coordinatord_relay_fees_above_ceiling",
    "1 while the chain asks for more than RELAY_MAX_FEE_GWEI: exits wait, the rest is refused",
    registry=REGISTRY,
)
relay_base_fee = Gauge("coordinatord_relay_base_fee_wei", "Base fee of the next block", registry=REGISTRY)
relay_gas_planned = Counter(
    "coordinatord_relay_gas_planned_total", "Gas that mined transactions offered to use", registry=REGISTRY
)
relay_gas_used = Counter("coordinatord_relay_gas_used_total", "Gas that mined transactions used", registry=REGISTRY)
relay_coalesced = Histogram(
    "coordinatord_relay_coalesced_ops",
    "Ops in one relay transaction",
    registry=REGISTRY,
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
relay_chained = Counter(
    "coordinatord_relay_chained_total",
    "Ops signed on top of an undecided op of their job: behind it in its transaction, or in one of a later nonce",
    ["kind", "where"],
    registry=REGISTRY,
)
relay_taken_apart = Counter(
    "coordinatord_relay_taken_apart_total",
    "Ops that the chain refused because what they build on was not there, and that went back to the queue",
    ["kind"],
    registry=REGISTRY,
)
relay_mined_seconds = Histogram(
    "coordinatord_relay_mined_seconds",
    "Time from a relay's insertion to its receipt",
    ["kind"],
    registry=REGISTRY,
    buckets=_LATENCY,
)
relayer_reserve = Gauge(
    "coordinatord_relayer_reserve_wei",
    "Native balance below which an account relays only exits and cancels, at what gas costs now",
    ["account"],
    registry=REGISTRY,
)
relay_gas = Counter(
    "coordinatord_relay_gas_total",
    "Gas that mined transactions used, by kind of op; what a reorganisation took back stays counted",
    ["kind"],
    registry=REGISTRY,
)
budget_refusals = Counter(
    "coordinatord_budget_refusals_total",
    "Requests refused by a budget: of gas, of storage, or an owner's balance",
    ["budget"],
    registry=REGISTRY,
)
pending_offers = Counter(
    "coordinatord_pending_offers_total",
    "Offers of jobs whose post was under way: stored, given to a provider, lapsed, claimed, refused",
    ["outcome"],
    registry=REGISTRY,
)
stored_bytes = Gauge(
    "coordinatord_stored_bytes", "Bytes kept for callers, by kind of content", ["kind"], registry=REGISTRY
)
relayer_balance = Gauge(
    "coordinatord_relayer_balance_wei", "Native balance of the relayer account", ["account"], registry=REGISTRY
)
relayer_role = Gauge(
    "coordinatord_relayer_role",
    "1 while the registries know the account for a relayer; without it nothing is posted or settled",
    ["account"],
    registry=REGISTRY,
)

index_cursor = Gauge("coordinatord_index_cursor_block", "Last block indexed", registry=REGISTRY)
index_head = Gauge("coordinatord_index_head_block", "Head that the node reports", registry=REGISTRY)
index_lag = Gauge("coordinatord_index_lag_blocks", "Head less cursor", registry=REGISTRY)
index_events = Counter("coordinatord_index_events_total", "Events applied to the index", ["event"], registry=REGISTRY)
index_reorgs = Counter("coordinatord_index_reorgs_total", "Reorganisations undone", registry=REGISTRY)
index_reorg_depth = Histogram(
    "coordinatord_index_reorg_depth_blocks",
    "Blocks undone by a reorganisation",
    registry=REGISTRY,
    buckets=(1, 2, 3, 5, 8, 13, 21, 34, 55, 128, 256),
)

event_listeners = Gauge(
    "coordinatord_event_listeners",
    "Event streams that are open, and polls that wait, by kind",
    ["kind"],
    registry=REGISTRY,
)
event_listeners_most = Gauge(
    "coordinatord_event_listeners_most",
    "Event streams and waiting polls that this process has places for",
    registry=REGISTRY,
)
event_listeners_ended = Counter(
    "coordinatord_event_listeners_ended_total",
    "Event streams that fell behind and were reset, that ended with this process, or that found no place, by reason",
    ["reason"],
    registry=REGISTRY,
)
events_told = Counter("coordinatord_events_told_total", "Events handed to streams", registry=REGISTRY)

webhooks = Gauge("coordinatord_webhooks", "Endpoints of webhooks, by state", ["state"], registry=REGISTRY)
webhook_late = Gauge(
    "coordinatord_webhook_late_seconds",
    "Time that an event waits to become messages, or the messages of a working endpoint wait for a process",
    registry=REGISTRY,
)
webhook_messages_waiting = Gauge(
    "coordinatord_webhook_messages_waiting",
    "Messages that wait for endpoints",
    registry=REGISTRY,
)
webhook_messages = Counter(
    "coordinatord_webhook_messages_total",
    "Attempts to deliver a message that succeeded or failed, messages given up, and those not written for want of room",
    ["outcome"],
    registry=REGISTRY,
)
webhook_seconds = Histogram(
    "coordinatord_webhook_attempt_seconds", "Time of an attempt, to the answer", registry=REGISTRY, buckets=_LATENCY
)

database_connections = Gauge(
    "coordinatord_database_connections", "Pooled connections, by use", ["use"], registry=REGISTRY
)
database_standbys = Gauge(
    "coordinatord_database_standbys",
    "Connected standbys by state (synchronous, asynchronous, hidden: no right to see it), shown by the janitor",
    ["state"],
    registry=REGISTRY,
)
database_replay_lag = Gauge(
    "coordinatord_database_replay_lag_seconds",
    "How far the slowest standby is behind, shown by the janitor",
    ["server"],
    registry=REGISTRY,
)
database_promotions = Counter(
    "coordinatord_database_promotions_total",
    "Times that this process found the database promoted, moved its ids forward and logged a reset",
    registry=REGISTRY,
)
replica_reads = Counter(
    "coordinatord_replica_reads_total",
    "Reads that a standby was asked for: answered, or left to the primary because it was behind or failed",
    ["outcome"],
    registry=REGISTRY,
)
store_requests = Histogram(
    "coordinatord_pin_store_request_seconds",
    "Time of a pin store request",
    ["operation", "outcome"],
    registry=REGISTRY,
    buckets=_LATENCY,
)
rpc_requests = Histogram(
    "coordinatord_rpc_request_seconds", "Time of a JSON-RPC request", ["outcome"], registry=REGISTRY, buckets=_LATENCY
)
node_up = Gauge(
    "coordinatord_node_up", "1 while the node answers; 0 after three failures in a row", ["node"], registry=REGISTRY
)
node_head = Gauge("coordinatord_node_head_block", "Head reported by the node", ["node"], registry=REGISTRY)
node_lag = Gauge(
    "coordinatord_node_lag_blocks",
    "Blocks that the node is behind the others (ahead of them: below 0); shown where there are several",
    ["node"],
    registry=REGISTRY,
)
node_contradicted = Counter(
    "coordinatord_node_contradicted_total",
    "Answers of the node that two others contradicted; it is not asked for ten minutes after each",
    ["node"],
    registry=REGISTRY,
)
nodes_disagree = Gauge(
    "coordinatord_nodes_disagree",
    "1 while something waits because nodes contradict each other: the index, or receipts",
    ["of"],
    registry=REGISTRY,
)
nodes_agreed = Gauge("coordinatord_nodes_agreed", "Nodes that agreed on the last indexed blocks", registry=REGISTRY)
signer_failing = Gauge(
    "coordinatord_signer_failing", "1 while the last requested signature failed", ["account"], registry=REGISTRY
)
escrow_releases = Counter(
    "coordinatord_escrow_releases_total", "Releases answered, by outcome", ["outcome"], registry=REGISTRY
)
escrow_generations = Gauge(
    "coordinatord_escrow_generations", "Generations of escrow keys held (mock mode)", registry=REGISTRY
)
roles_held = Gauge("coordinatord_role_held", "1 while this process holds the role", ["role"], registry=REGISTRY)
