"""Settings of the coordinator, read once into a frozen value. No other module reads the environment."""

from collections.abc import Mapping
from typing import Final, Literal, cast

import attrs

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.daemon.secrets import Secret
from common.refusal import Refused
from common.settings.errors import SettingError
from common.settings.kinds import boolean, choice, integer, text, url
from common.settings.listing import SettingRow, describe_settings
from common.settings.reader import Credentials, Environment, read_from_sources, setting, settings_of, unknown_variables
from coordinatord.run.chain_config import ChainConfig
from coordinatord.run.kinds import (
    address_book,
    address_book_file,
    database_urls,
    ip_addresses,
    origins,
    private_keys,
    secret,
)
from coordinatord.run.limits import Limits

ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - the specification's default
# Variables of systemd, shells and libraries whose names look like settings.
_FOREIGN_VARIABLES: Final = frozenset(
    {"CREDENTIALS_DIRECTORY", "JOURNAL_STREAM", "LOGS_DIRECTORY", "LOG_NAMESPACE", "REQUESTS_CA_BUNDLE", "SENTRY_"}
)
_MOCK_ONLY_VARIABLES: Final = (
    "ESCROW_ROTATE_INTERVAL_MS",
    "ESCROW_SWEEP_INTERVAL_MS",
    "PEER_URL",
    "PEER_REQUIRED",
    "PEER_SYNC_S",
    "ESCROW_CLOCK_OFFSET_MS",
)


@attrs.frozen(slots=True, kw_only=True)
class Config(ChainConfig):
    """Settings of the specification, followed by settings that this project adds. `ChainConfig` has the settings of the
    nodes and of the relayer."""

    addresses_file: AddressBook | None = setting(address_book_file, "address book of the market", None)
    addresses_json: AddressBook | None = setting(
        address_book, "address book of the market as inline JSON; set either ADDRESSES_FILE or ADDRESSES_JSON", None
    )
    database_url: Secret = setting(secret, "PostgreSQL connection string", secret=True)
    port: int = setting(integer(1, 65535), "HTTP port; binds 0.0.0.0 unless BIND_HOST is set", 8402)
    cors_origins: tuple[str, ...] = setting(
        origins, "exact origins of web pages that may call the API; unset: no CORS headers", ()
    )
    ready_lag_blocks: int = setting(
        integer(0, 1_000_000), "highest index lag, in blocks, at which the coordinator is ready", 7
    )
    pin_store_endpoint: str = setting(url, "URL of the object store that pins to IPFS")
    pin_store_key: Secret | None = setting(
        secret, "access key; for Kubo: user of its RPC, if it requires one", None, secret=True
    )
    pin_store_secret: Secret | None = setting(
        secret, "secret key; for Kubo: password of the user in PIN_STORE_KEY", None, secret=True
    )
    pin_store_bucket: str | None = setting(text, "bucket; not used with Kubo", None)
    pin_store_region: str = setting(text, "region for which requests to the store are signed", "us-east-1")
    max_blob_bytes: int = setting(integer(1024, 1_073_741_824), "largest file upload", 209_715_200)
    file_retention_seconds: int = setting(
        integer(259_200, 31_536_000), "lifetime of attached files and stored objects", 2_592_000
    )
    match_lease_ms: int = setting(integer(1000, 600_000), "how long a provider's poll leases a job", 20_000)
    match_liveness_ms: int = setting(
        integer(1000, 600_000), "how recently a provider must have polled to be a candidate", 15_000
    )
    match_candidates: int = setting(integer(1, 100), "number of candidates in a 402 quote", 3)
    escrow_mode: Literal["off", "static", "mock"] = setting(
        choice("off", "static", "mock"), "custody of escrow keys; mock is for development", "off"
    )
    operator_keys: tuple[Secret, ...] = setting(
        private_keys,
        "escrow keys; clients seal to the first, the coordinator opens orders sealed to any of them",
        (),
        name="operator_key",
        secret=True,
    )
    release_ordinal: int = setting(integer(0, 65535), "release number that is reported as evidence.release", 1)
    escrow_rotate_interval_ms: int = setting(
        integer(3_600_000, 604_800_000), "mock only: interval of new keys", 86_400_000
    )
    escrow_sweep_interval_ms: int = setting(
        integer(1000, 3_600_000), "mock only: interval of erasing retired keys", 300_000
    )
    peer_url: str | None = setting(url, "mock only: URL of the coordinator to pull keys from", None)
    peer_required: bool = setting(boolean, "mock only: listen only after the first pull of keys has succeeded", False)
    peer_sync_s: int = setting(integer(5, 86400), "mock only: interval of pulls from PEER_URL", 300)
    escrow_clock_offset_ms: int = setting(
        integer(0, 31_536_000_000), "mock only: time by which the retention clock runs ahead", 0
    )
    sentry_dsn: Secret | None = setting(secret, "error reporting; needs the extra `sentry`", None, secret=True)
    sentry_environment: str | None = setting(text, "error reporting: environment tag", None)
    sentry_release: str | None = setting(text, "error reporting: release tag", None)

    bind_host: str = setting(text, "address on which PORT listens; 127.0.0.1 behind a proxy on this machine", ANY_HOST)
    trusted_proxies: tuple[str, ...] = setting(
        ip_addresses, "addresses of trusted proxies, which name the caller in x-forwarded-for", ()
    )
    requests_per_second: int = setting(
        integer(1, 1_000_000),
        "sustained requests per second of one caller, with bursts of 2.5 times as many; beyond it, 429 busy",
        400,
    )
    metrics_host: str = setting(text, "address on which METRICS_PORT listens", "127.0.0.1")
    metrics_port: int = setting(
        integer(0, 65535), "port of /metrics and of the operators' page; 0 serves neither", 9402
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        choice("debug", "info", "warning", "error"), "lowest level that is logged", "info"
    )
    gateway_url: str | None = setting(
        url, "gateway for containers and results, which GET /evm/chain returns; without /ipfs/", None
    )
    pin_store: Literal["filebase", "s3", "kubo"] = setting(
        choice("filebase", "s3", "kubo"),
        "kind of PIN_STORE_ENDPOINT: filebase (S3 that returns content ids), s3 (any other S3) or kubo (Kubo's RPC)",
        "filebase",
    )
    webhooks_key: tuple[Secret, ...] = setting(
        private_keys,
        "keys for the secrets of webhooks; the first encrypts, all decrypt; unset: no webhooks",
        (),
        secret=True,
    )
    webhooks_private: Literal["refuse", "allow"] = setting(
        choice("refuse", "allow"),
        "for development: allow webhooks to private addresses, over plain HTTP and to any port",
        "refuse",
    )
    database_replica_urls: tuple[Secret, ...] = setting(
        database_urls, "PostgreSQL standbys for reads of the index, each with its own pool", (), secret=True
    )
    database_pool_max: int = setting(
        integer(2, 500), "largest size of the connection pool; eight more connections serve reads, notices and roles", 8
    )
    confirmations: int = setting(
        integer(0, 10_000), "number of blocks that the index stays below the head; 0 follows the latest block", 0
    )
    relay_retention_seconds: int = setting(
        integer(259_200, 31_536_000), "retention of ended relays, their transactions and gas bookings", 604_800
    )
    budget_wallet_gas: int = setting(
        integer(0, 10**15),
        "gas a day for one wallet's posts; budgets for claims and upkeep are proportional; 0 is no limit",
        20_000_000,
    )
    budget_newcomers_gas: int = setting(
        integer(0, 10**15),
        "gas a day for all newcomers together (under 10 settled jobs, no listed provider); 0 is no limit",
        2_000_000_000,
    )
    storage_bytes: int = setting(
        integer(0, 10**15),
        "bytes stored for a wallet with a settled job or listed provider; 0 is no limit",
        107_374_182_400,
    )
    storage_newcomers_bytes: int = setting(
        integer(0, 10**15), "bytes stored for all other wallets together, 1/64 for each; 0 is no limit", 17_179_869_184
    )

    limits: Limits = Limits()

    @property
    def addresses(self) -> AddressBook:
        return cast("AddressBook", self.addresses_file or self.addresses_json)

    def __attrs_post_init__(self) -> None:
        if (self.addresses_file is None) == (self.addresses_json is None):
            raise Refused("exactly one of ADDRESSES_FILE and ADDRESSES_JSON must be set")
        if self.escrow_mode != "off" and not self.operator_keys:
            raise Refused(f"is required when ESCROW_MODE is {self.escrow_mode}", "operator_keys")
        self.check_chain_settings()
        if self.peer_required and self.peer_url is None:
            raise Refused("requires that PEER_URL is set", "peer_required")
        if self.pin_store != "kubo":
            for name in ("pin_store_key", "pin_store_secret", "pin_store_bucket"):
                if getattr(self, name) is None:
                    raise Refused(f"is required with PIN_STORE={self.pin_store}", name)
        if self.metrics_port == self.port:
            raise Refused("must differ from PORT", "metrics_port")


def read_config(environ: Mapping[str, str]) -> Config:
    """Return the configuration. Raise Fatal with the name of the wrong variable."""
    try:
        config = read_from_sources(Config, Environment(environ), Credentials.of(environ))
    except SettingError as error:
        raise Fatal(error.message) from None
    if config.escrow_mode == "static":
        for name in _MOCK_ONLY_VARIABLES:
            if environ.get(name):
                raise Fatal(f"{name} is for ESCROW_MODE=mock only; unset it or change the mode")
    return config


def setting_rows(environ: Mapping[str, str]) -> list[SettingRow]:
    return describe_settings(Config, Environment(environ), Credentials.of(environ))


def variable_names() -> list[str]:
    return [each.name.upper() for each in settings_of(Config)]


def unknown_settings(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that look like settings but are not. The value is the name of a similar setting, or None."""
    return unknown_variables(environ, variable_names(), _FOREIGN_VARIABLES)
