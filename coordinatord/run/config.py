"""Settings of the coordinator: read once, at the root, into one frozen value; nothing else reads the environment."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.daemon.secrets import Secret
from coordinatord.run.chain_config import ChainConfig, check_chain_settings
from coordinatord.run.environment import (
    boolean,
    choice,
    database_urls,
    integer,
    ip_addresses,
    origins,
    private_keys,
    read_addresses,
    read_fields,
    secret,
    set_variables,
    text,
    unknown_variables,
    url,
    variable,
)

EscrowMode = Literal["off", "static", "mock"]
PinStoreKind = Literal["filebase", "s3", "kubo"]
ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - the specification says so


@attrs.frozen(slots=True, kw_only=True)
class Config(ChainConfig):
    """The specification's variables first, then those that this implementation adds; those of nodes and relayer are
    `ChainConfig`'s."""

    addresses: AddressBook

    database_url: Secret = variable("DATABASE_URL", secret, "PostgreSQL connection string", secret=True)
    port: int = variable("PORT", integer(1, 65535), "HTTP port; binds 0.0.0.0 unless BIND_HOST is set", 8402)
    cors_origins: tuple[str, ...] = variable(
        "CORS_ORIGINS", origins, "comma-separated exact origins; unset sends no CORS headers", ()
    )
    ready_lag_blocks: int = variable(
        "READY_LAG_BLOCKS", integer(0, 1_000_000), "index lag that still counts as ready", 7
    )
    pin_store: PinStoreKind = variable(
        "PIN_STORE",
        choice("filebase", "s3", "kubo"),
        "kind of object store: an S3 that pins and tells the content id (filebase), any other S3, or Kubo's RPC",
        "filebase",
    )
    pin_store_endpoint: str = variable("PIN_STORE_ENDPOINT", url, "object store that pins to IPFS")
    pin_store_key: Secret = variable(
        "PIN_STORE_KEY", secret, "access key; Kubo: user of its RPC, if it wants one", Secret(""), secret=True
    )
    pin_store_secret: Secret = variable(
        "PIN_STORE_SECRET", secret, "secret key; Kubo: that user's password", Secret(""), secret=True
    )
    pin_store_bucket: str = variable("PIN_STORE_BUCKET", text, "bucket; none with Kubo", "")
    pin_store_region: str = variable("PIN_STORE_REGION", text, "signing region", "us-east-1")
    max_blob_bytes: int = variable("MAX_BLOB_BYTES", integer(1024, 1_073_741_824), "largest file upload", 209_715_200)
    file_retention_seconds: int = variable(
        "FILE_RETENTION_SECONDS",
        integer(259_200, 31_536_000),
        "lifetime of attached files and stored objects",
        2_592_000,
    )
    match_lease_ms: int = variable(
        "MATCH_LEASE_MS", integer(1000, 600_000), "how long a provider poll holds a job", 20000
    )
    match_liveness_ms: int = variable(
        "MATCH_LIVENESS_MS",
        integer(1000, 600_000),
        "how recently a provider must have polled to be a candidate",
        15000,
    )
    match_candidates: int = variable("MATCH_CANDIDATES", integer(1, 100), "candidates named on a 402 quote", 3)
    escrow_mode: EscrowMode = variable("ESCROW_MODE", choice("off", "static", "mock"), "escrow custody", "off")
    operator_keys: tuple[Secret, ...] = variable(
        "OPERATOR_KEY", private_keys, "escrow keys, comma-separated; the first is announced, all open", (), secret=True
    )
    release_ordinal: int = variable("RELEASE_ORDINAL", integer(0, 65535), "reported as evidence.release", 1)
    escrow_rotate_interval_ms: int = variable(
        "ESCROW_ROTATE_INTERVAL_MS", integer(3_600_000, 604_800_000), "mock only: new key generation", 86_400_000
    )
    escrow_sweep_interval_ms: int = variable(
        "ESCROW_SWEEP_INTERVAL_MS", integer(1000, 3_600_000), "mock only: erases retired generations", 300_000
    )
    peer_url: str | None = variable("PEER_URL", url, "mock only: instance to pull keys from", None)
    peer_required: bool = variable(
        "PEER_REQUIRED", boolean, "mock only: the first pull must succeed before listening", False
    )
    peer_sync_s: int = variable("PEER_SYNC_S", integer(5, 86400), "mock only: standing pull interval", 300)
    escrow_clock_offset_ms: int = variable(
        "ESCROW_CLOCK_OFFSET_MS", integer(0, 31_536_000_000), "mock only: runs the retention clock ahead", 0
    )
    sentry_dsn: Secret | None = variable(
        "SENTRY_DSN", secret, "error reporting endpoint; needs the extra `sentry`", None, secret=True
    )
    sentry_environment: str | None = variable("SENTRY_ENVIRONMENT", text, "error reporting: environment tag", None)
    sentry_release: str | None = variable("SENTRY_RELEASE", text, "error reporting: release tag", None)

    gateway_url: str | None = variable(
        "GATEWAY_URL",
        url,
        "gateway that GET /evm/chain tells clients to read containers and results from; before /ipfs/",
        None,
    )
    bind_host: str = variable(
        "BIND_HOST", text, "address that PORT binds; 127.0.0.1 behind a proxy on this machine", ANY_HOST
    )
    web: Literal["on", "off"] = variable(
        "WEB",
        choice("on", "off"),
        "off leaves out the page that GET / serves, on which people look at the market",
        "on",
    )
    webhooks_key: tuple[Secret, ...] = variable(
        "WEBHOOKS_KEY",
        private_keys,
        "keys that webhooks' secrets are stored under, comma-separated; the first seals, all open; unset: no webhooks",
        (),
        secret=True,
    )
    webhooks_private: Literal["refuse", "allow"] = variable(
        "WEBHOOKS_PRIVATE",
        choice("refuse", "allow"),
        "for development: allow posts webhooks to private addresses too, over plain HTTP and to any port",
        "refuse",
    )
    metrics_host: str = variable("METRICS_HOST", text, "address that metrics are served on", "127.0.0.1")
    metrics_port: int = variable(
        "METRICS_PORT", integer(0, 65535), "port of /metrics and of the operators' page; 0 serves none", 9402
    )
    budget_posts_gas: int = variable(
        "BUDGET_POSTS_GAS",
        integer(0, 10**15),
        "gas a day for one wallet's posts, and half as much again for its cancels; 0 is no limit",
        20_000_000,
    )
    budget_work_gas: int = variable(
        "BUDGET_WORK_GAS",
        integer(0, 10**15),
        "gas a day for one provider's claims, settles and fails; only claims are refused; 0 is no limit",
        60_000_000,
    )
    budget_upkeep_gas: int = variable(
        "BUDGET_UPKEEP_GAS",
        integer(0, 10**15),
        "gas a day for a listed provider's identity, capacity and asks; 0 is no limit",
        50_000_000,
    )
    budget_unlisted_upkeep_gas: int = variable(
        "BUDGET_UNLISTED_UPKEEP_GAS",
        integer(0, 10**15),
        "the same for a provider that is not listed; 0 is no limit",
        2_000_000,
    )
    budget_newcomers_gas: int = variable(
        "BUDGET_NEWCOMERS_GAS",
        integer(0, 10**15),
        "daily gas of all newcomers together (under 10 settled jobs, no listed provider); 0 is no limit",
        2_000_000_000,
    )
    budget_gas_per_settled: int = variable(
        "BUDGET_GAS_PER_SETTLED",
        integer(0, 10**12),
        "gas a day added to the posts or the work of a wallet for each of its jobs of the last 7 days that settled",
        500_000,
    )
    budget_hourly_percent: int = variable(
        "BUDGET_HOURLY_PERCENT", integer(1, 100), "percent of a day's gas that may go in one hour of the clock", 50
    )
    storage_new_bytes: int = variable(
        "STORAGE_NEW_BYTES",
        integer(0, 10**15),
        "bytes kept for a wallet that has no settled job and is no listed provider; 0 is no limit",
        268_435_456,
    )
    storage_new_rows: int = variable(
        "STORAGE_NEW_ROWS",
        integer(0, 10**12),
        "files, containers, batches and their lines kept for such a wallet; 0 is no limit",
        100_000,
    )
    storage_newcomers_bytes: int = variable(
        "STORAGE_NEWCOMERS_BYTES",
        integer(0, 10**15),
        "bytes that all wallets without a settled job or listed provider share; 0 is no limit",
        17_179_869_184,
    )
    storage_bytes: int = variable(
        "STORAGE_BYTES", integer(0, 10**15), "bytes kept for any other wallet; 0 is no limit", 107_374_182_400
    )
    storage_rows: int = variable(
        "STORAGE_ROWS",
        integer(0, 10**12),
        "files, containers, batches and their lines kept for any other wallet; 0 is no limit",
        5_000_000,
    )
    unsettled_retention_seconds: int = variable(
        "UNSETTLED_RETENTION_SECONDS",
        integer(1, 31_536_000),
        "time that an inline container is kept for after its job was cancelled, failed, expired or never posted",
        172_800,
    )
    failed_batch_retention_seconds: int = variable(
        "FAILED_BATCH_RETENTION_SECONDS",
        integer(1, 31_536_000),
        "time that a batch without a result is kept for after its end, with its error file",
        259_200,
    )
    confirmations: int = variable(
        "CONFIRMATIONS", integer(0, 10_000), "blocks below the head that the index follows; 0 is the latest block", 0
    )
    relay_retention_seconds: int = variable(
        "RELAY_RETENTION_SECONDS",
        integer(259_200, 31_536_000),
        "time that ended relays, their transactions and the gas booked for them are kept",
        604_800,
    )
    endings_retention_seconds: int = variable(
        "ENDINGS_RETENTION_SECONDS",
        integer(604_800, 315_360_000),
        "time that it is kept which transaction ended a job; after it, whoever cancels that job has the chain asked",
        31_536_000,
    )
    journal_blocks: int = variable(
        "JOURNAL_BLOCKS", integer(64, 100_000), "blocks whose changes can be undone after a reorg", 256
    )
    database_replica_urls: tuple[Secret, ...] = variable(
        "DATABASE_REPLICA_URLS",
        database_urls,
        "PostgreSQL standbys that reads of the index may go to, comma-separated; each gets a pool of its own",
        (),
        secret=True,
    )
    database_pool_min: int = variable("DATABASE_POOL_MIN", integer(1, 500), "connections kept open", 2)
    database_pool_max: int = variable(
        "DATABASE_POOL_MAX", integer(2, 500), "pooled connections at most, beside eight for reads, notices and roles", 8
    )
    body_memory_bytes: int = variable(
        "BODY_MEMORY_BYTES",
        integer(33_554_432, 68_719_476_736),
        "request bodies held in memory at once; one caller gets half",
        268_435_456,
    )
    database_statement_timeout_s: int = variable(
        "DATABASE_STATEMENT_TIMEOUT_S",
        integer(1, 3600),
        "longest time of one pooled statement; roles get ten times as long, migrations any",
        10,
    )
    connections_max: int = variable(
        "CONNECTIONS_MAX",
        integer(16, 1_000_000),
        "connections of callers at once; the one idle for longest makes room for a new one",
        8192,
    )
    connections_per_caller: int = variable(
        "CONNECTIONS_PER_CALLER",
        integer(1, 1_000_000),
        "connections of one caller at once, in the same way; proxies that are trusted have no such limit",
        512,
    )
    event_listeners_max: int = variable(
        "EVENT_LISTENERS_MAX",
        integer(0, 1_000_000),
        "event streams and waiting polls at once, half of CONNECTIONS_MAX at most; beyond it 503, or no wait",
        4096,
    )
    event_listeners_per_caller: int = variable(
        "EVENT_LISTENERS_PER_CALLER",
        integer(0, 1_000_000),
        "event streams and waiting polls of one caller at once; beyond it 429 busy, or no wait",
        64,
    )
    requests_per_second: int = variable(
        "REQUESTS_PER_SECOND", integer(1, 1_000_000), "sustained requests of one caller; beyond it 429 busy", 400
    )
    requests_burst: int = variable(
        "REQUESTS_BURST", integer(1, 1_000_000), "requests of one caller at once above that rate", 1000
    )
    trusted_proxies: tuple[str, ...] = variable(
        "TRUSTED_PROXIES",
        ip_addresses,
        "addresses whose x-forwarded-for names the caller, comma-separated",
        (),
    )
    body_deadline_s: int = variable("BODY_DEADLINE_S", integer(1, 3600), "longest time for one request body", 60)
    body_least_rate: int = variable(
        "BODY_LEAST_RATE", integer(1, 1_073_741_824), "bytes per second a request body must average", 4096
    )
    body_silence_s: int = variable(
        "BODY_SILENCE_S", integer(1, 3600), "longest wait for the next byte of a request body or an upload", 10
    )
    upload_memory_bytes: int = variable(
        "UPLOAD_MEMORY_BYTES",
        integer(16_777_216, 68_719_476_736),
        "memory that uploads pass through, at once; each takes what came of it up to 16 MiB, and one caller gets half",
        268_435_456,
    )
    uploads_per_caller: int = variable(
        "UPLOADS_PER_CALLER", integer(1, 10_000), "uploads of one caller at a time; beyond it 429 busy", 4
    )
    uploads_per_wallet: int = variable(
        "UPLOADS_PER_WALLET",
        integer(1, 10_000),
        "uploads at a time with sessions of one wallet; beyond it 429 busy",
        4,
    )
    upload_least_rate: int = variable(
        "UPLOAD_LEAST_RATE", integer(1, 1_073_741_824), "bytes per second an upload must average", 16384
    )
    boot_patience_s: int = variable(
        "BOOT_PATIENCE_S", integer(0, 3600), "time that a start waits for the database and the node", 60
    )
    shutdown_grace_s: int = variable(
        "SHUTDOWN_GRACE_S", integer(1, 600), "time that requests in flight get after SIGTERM", 30
    )
    former_relayer_keys: tuple[Secret, ...] = variable(
        "FORMER_RELAYER_KEYS",
        private_keys,
        "keys of accounts relayed from before, comma-separated: what they sent is seen through, nothing new is sent",
        (),
        secret=True,
    )
    log_level: str = variable("LOG_LEVEL", choice("debug", "info", "warning", "error"), "least level logged", "info")


ADDRESSES: Final = ("ADDRESSES_FILE", "ADDRESSES_JSON")  # read together, outside the fields
_MOCK_ONLY: Final = (
    "ESCROW_ROTATE_INTERVAL_MS",
    "ESCROW_SWEEP_INTERVAL_MS",
    "PEER_URL",
    "PEER_REQUIRED",
    "PEER_SYNC_S",
    "ESCROW_CLOCK_OFFSET_MS",
)


def read_config(environ: Mapping[str, str]) -> Config:
    """The configuration, or Fatal naming the variable at fault. An empty value counts as unset."""
    present = set_variables(environ)
    config = Config(addresses=read_addresses(present), **read_fields(variables(), present))  # type: ignore[arg-type] # each value was read by its own field's reader
    _check_together(config, present)
    return config


def variables() -> list["attrs.Attribute[Any]"]:
    """The fields that are read from a variable each, with their metadata: what documentation and tests list."""
    return [field for field in attrs.fields(Config) if "variable" in field.metadata]


def unknown_settings(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that look like settings but are not, each with the most similar setting or None."""
    return unknown_variables(environ, {*(field.metadata["variable"] for field in variables()), *ADDRESSES})


def _check_together(config: Config, present: Mapping[str, str]) -> None:
    if config.escrow_mode != "off" and not config.operator_keys:
        raise Fatal(f"OPERATOR_KEY is required when ESCROW_MODE is {config.escrow_mode}")
    if config.escrow_mode == "static":
        for name in _MOCK_ONLY:
            if name in present:
                raise Fatal(f"{name} is for ESCROW_MODE=mock only; unset it or change the mode")
    check_chain_settings(config)
    if config.peer_required and config.peer_url is None:
        raise Fatal("PEER_REQUIRED needs PEER_URL")
    if config.pin_store != "kubo":
        for name in ("PIN_STORE_KEY", "PIN_STORE_SECRET", "PIN_STORE_BUCKET"):
            if not _is_set(config, name):
                raise Fatal(f"{name} is required with PIN_STORE={config.pin_store}")
    if config.metrics_port == config.port:
        raise Fatal("METRICS_PORT must not be PORT")
    if config.database_pool_min > config.database_pool_max:
        raise Fatal("DATABASE_POOL_MIN must not be above DATABASE_POOL_MAX")


def _is_set(config: Config, name: str) -> bool:
    value = getattr(config, name.lower())
    return bool(value.reveal() if isinstance(value, Secret) else value)
