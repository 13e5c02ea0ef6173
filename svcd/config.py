"""Read the daemon's configuration, a TOML file, into frozen values.

`config/svcd.toml` documents every key. Fields without `setting` are constants, which only tests change.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import attrs

from common.address_book import AddressBook
from common.api.limits import MAX_SLA_S, MAX_SNAPSHOT_QUOTES
from common.box import SecretKey
from common.daemon.process import Fatal
from common.pricing.model_input import Modality
from common.refusal import Refused
from common.secp256k1 import Wallet
from common.settings.errors import KeyPath, SettingError
from common.settings.kinds import Kind, choice, integer, list_of, number, path, text
from common.settings.reader import setting
from common.settings.toml import read_settings_file, table, tables
from svcd.backends.discount import AskRates
from svcd.backends.load_settings import ProbeSettings, SlotsSettings, probe_kind
from svcd.backends.settings import BackendSettings, HttpSettings, OpenAISettings, backend_kind, with_api_key
from svcd.base.keys import SecretLocation, read_key, read_wallet, secret_location
from svcd.base.kinds import base_units, host_and_port, http_url, https_url, unordered_list

_MODALITY_KIND: Final[Kind[Modality]] = choice("text", "embeddings", "image", "video")


@attrs.frozen(slots=True, kw_only=True)
class CoordinatorTable:
    url: str = setting(http_url, "the market's coordinator")
    addresses_file: Path | None = setting(path, "the market's address book", None)
    rpc_url: str | None = setting(http_url, "a node of the chain", None, secret=True)

    def __attrs_post_init__(self) -> None:
        if self.rpc_url is not None and self.addresses_file is None:
            raise Refused("needs addresses_file, so that the coordinator does not choose the contracts", "rpc_url")


@attrs.frozen(slots=True, kw_only=True)
class GatewayTable:
    urls: tuple[str, ...] = setting(list_of(http_url, at_least=1), "gateways that serve payloads, tried in turn")


@attrs.frozen(slots=True, kw_only=True)
class KeysTable:
    wallet: SecretLocation = setting(
        secret_location, "location of the wallet's key", SecretLocation("wallet.key"), secret=True
    )
    wallet_password: SecretLocation | None = setting(
        secret_location, "location of a keystore's password", None, secret=True
    )
    box: SecretLocation | None = setting(secret_location, "location of the box key", None, secret=True)
    evidence_file: Path | None = setting(path, "evidence that `svcd identity` publishes", None)


@attrs.frozen(slots=True, kw_only=True)
class MetricsTable:
    host: str = setting(text, "address of /metrics, /healthz and the page", "127.0.0.1")
    port: int = setting(integer(0, 65_535), "port of /metrics and /healthz; 0 disables both", 9403)


@attrs.frozen(slots=True, kw_only=True)
class LimitsTable:
    shutdown_grace_seconds: float = setting(number(0, 86_400), "time to finish the held jobs after SIGTERM", 60.0)

    # The upper limit is the highest MAX_BLOB_BYTES that a coordinator can have.
    max_container_bytes: int = setting(integer(1024, 1_073_741_824), "largest payload", 209_715_200)


@attrs.frozen(slots=True, kw_only=True)
class TabsTable:
    """Settings of the HTTPS endpoint to which owners of this provider's tabs connect directly."""

    listen: tuple[str, int] = setting(host_and_port, "address and port of the server")
    url: str = setting(https_url, "URL at which owners reach the server")
    certificate: Path = setting(path, "file with the certificate (PEM)")
    private_key: Path = setting(path, "file with the certificate's key (PEM)", secret=True)


@attrs.frozen(slots=True, kw_only=True)
class AskTable:
    sla_seconds: int = setting(integer(1, MAX_SLA_S), "SLA window")
    rate_in: int = setting(base_units, "price of 10^6 input units")
    rate_out: int = setting(base_units, "price of 10^6 output units")

    def __attrs_post_init__(self) -> None:
        if not self.rate_in and not self.rate_out:
            raise Refused(
                "and rate_out are both 0, which would withdraw the ask: remove this ask, or set a rate above 0",
                "rate_in",
            )


@attrs.frozen(slots=True, kw_only=True)
class AheadTable:
    """Limits for running a model's jobs before their claim is in a block."""

    max_amount: int = setting(base_units, "highest amount of one job that runs ahead")
    max_in_flight: int = setting(base_units, "highest amount of all jobs that run ahead at a time")
    settled_jobs: int = 5  # number of the owner's settled jobs that this daemon's journal must have


@attrs.frozen(slots=True, kw_only=True)
class ModelConfig:
    """Settings of an offered model. The daemon claims only jobs whose window has an ask."""

    name: str = setting(text, "the model's name in the coordinator's catalogue")
    serves: frozenset[Modality] = setting(
        unordered_list(_MODALITY_KIND, at_least=1), "kinds of jobs", frozenset[Modality]({"text"})
    )
    slots: int = setting(integer(1, 10_000), "jobs held at a time")
    margin_seconds: float = setting(number(0, 86_400), "time to leave for sealing, uploading and settling", 30.0)
    discount_percent: int = setting(integer(0, 100), "largest discount of an idle machine", 0)
    ask: tuple[AskTable, ...] = setting(tables(AskTable, at_least=1), "prices")
    ahead: AheadTable | None = setting(
        table(AheadTable), "run jobs before their claim is in a block (default: off)", None
    )
    backend: BackendSettings = setting(backend_kind, "the model's server or program")
    load: ProbeSettings = setting(probe_kind, "the backend's load", SlotsSettings())
    poll_seconds: float = 1.0

    @property
    def asks(self) -> dict[int, AskRates]:
        """Rates by SLA window in seconds."""
        return {ask.sla_seconds: AskRates(ask.rate_in, ask.rate_out) for ask in self.ask}


@attrs.frozen(slots=True, kw_only=True)
class ConfigFile:
    state_directory: Path = setting(path, "folder of the journal and of large payloads and results")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        choice("debug", "info", "warning", "error"), "lowest level of the log", "info"
    )
    coordinator: CoordinatorTable = setting(table(CoordinatorTable))
    gateway: GatewayTable = setting(table(GatewayTable))
    keys: KeysTable = setting(table(KeysTable), "", KeysTable())
    metrics: MetricsTable = setting(table(MetricsTable), "", MetricsTable())
    limits: LimitsTable = setting(table(LimitsTable), "", LimitsTable())
    tabs: TabsTable | None = setting(table(TabsTable), "direct connections of tabs (default: none)", None)
    model: tuple[ModelConfig, ...] = setting(tables(ModelConfig, at_least=1))

    def __attrs_post_init__(self) -> None:
        for n, model in enumerate(self.model):
            if model.name in {other.name for other in self.model[:n]}:
                raise SettingError.at(
                    ("model", n, "name"), f"must differ from the other models' names: {model.name!r} is used twice"
                )
            windows = [ask.sla_seconds for ask in model.ask]
            for k, window in enumerate(windows):
                if window in windows[:k]:
                    key_path = ("model", n, "ask", k, "sla_seconds")
                    raise SettingError.at(
                        key_path, f"must differ from the windows of the model's other asks: {window} is used twice"
                    )
        if sum(len(model.ask) for model in self.model) > MAX_SNAPSHOT_QUOTES:
            raise Refused(
                f"must have at most {MAX_SNAPSHOT_QUOTES} asks in all, because a snapshot can list no more", "model"
            )


@attrs.frozen(slots=True, kw_only=True)
class DaemonConfig:
    state_directory: Path
    shutdown_grace_seconds: float
    log_level: str
    max_container_bytes: int
    coordinator_url: str
    addresses: AddressBook | None
    rpc_url: str | None = attrs.field(default=None, repr=False)  # the URL may contain a key
    gateways: tuple[str, ...]
    gateway_attempts: int = 8  # rounds over all gateways; rounds in which no gateway answers are not counted
    gateway_pause_seconds: float = 1.5
    wallet: Wallet
    box: SecretKey | None
    evidence_file: Path | None
    metrics_host: str
    metrics_port: int
    tabs: TabsTable | None = None
    models: tuple[ModelConfig, ...]
    private_paths: tuple[Path, ...] = ()  # paths that programs of exec backends must not access

    @property
    def slots(self) -> dict[str, int]:
        return {model.name: model.slots for model in self.models}


def read_config(path: Path, environ: Mapping[str, str] = os.environ) -> DaemonConfig:
    """Read the configuration and its secret keys. Raise `Fatal` with the file and the setting that is wrong."""
    file = read_settings(path)
    credentials = path.absolute().parent / "credentials"
    if not environ.get("CREDENTIALS_DIRECTORY") and credentials.is_dir():
        # systemd sets this variable only for the daemon. Commands in a shell read the same key files from this folder.
        environ = {**environ, "CREDENTIALS_DIRECTORY": str(credentials)}
    try:
        return _read_keys(file, environ)
    except SettingError as error:
        raise Fatal(str(error.in_file(path))) from None


def read_settings(path: Path) -> ConfigFile:
    """Read the settings file, but not the secret keys that it refers to. Raise `Fatal` like `read_config`."""
    if not path.exists():
        raise Fatal(f'settings file not found: {path} (create it with "svcd init --config {path}")')
    try:
        return read_settings_file(path, ConfigFile)
    except SettingError as error:
        raise Fatal(str(error)) from None


def _read_keys(file: ConfigFile, environ: Mapping[str, str]) -> DaemonConfig:
    keys = file.keys
    with _locate_errors("keys", "wallet_password"):
        password = None if keys.wallet_password is None else keys.wallet_password.read(environ)
    with _locate_errors("keys", "wallet"):
        wallet = read_wallet(keys.wallet, password, environ)
    with _locate_errors("keys", "box"):
        box = None if keys.box is None else read_key(keys.box, environ, SecretKey)
    models = []
    for n, model in enumerate(file.model):
        with _locate_errors("model", n, "backend", "api_key"):
            models.append(attrs.evolve(model, backend=with_api_key(model.backend, environ)))
    return DaemonConfig(
        state_directory=file.state_directory,
        log_level=file.log_level,
        shutdown_grace_seconds=file.limits.shutdown_grace_seconds,
        max_container_bytes=file.limits.max_container_bytes,
        coordinator_url=file.coordinator.url.rstrip("/"),
        addresses=_read_address_book(file.coordinator.addresses_file),
        rpc_url=file.coordinator.rpc_url,
        gateways=tuple(url.rstrip("/") for url in file.gateway.urls),
        wallet=wallet,
        box=box,
        evidence_file=keys.evidence_file,
        metrics_host=file.metrics.host,
        metrics_port=file.metrics.port,
        tabs=file.tabs,
        models=tuple(models),
        private_paths=_private_paths(file, environ),
    )


@contextmanager
def _locate_errors(*path: str | int) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise SettingError.at(path, error.message) from None


def _read_address_book(path: Path | None) -> AddressBook | None:
    if path is None:
        return None
    key_path: KeyPath = ("coordinator", "addresses_file")
    try:
        return AddressBook.parse(path.read_bytes())
    except OSError as error:
        raise SettingError.at(key_path, f"names {path}, which cannot be read ({error.strerror})") from None
    except Refused as error:
        raise SettingError.at(key_path, f"names {path}, which is not a valid address book: {error.message}") from None


def _private_paths(file: ConfigFile, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the state directory, systemd's credentials, and every key file."""
    locations = [file.keys.wallet, file.keys.wallet_password, file.keys.box]
    for model in file.model:
        if isinstance(model.backend, OpenAISettings | HttpSettings):
            locations.append(model.backend.api_key)
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    files = [location.file for location in locations if location is not None]
    return (
        file.state_directory,
        *([Path(credentials)] if credentials else []),
        *(path for path in files if path is not None),
        *([] if file.tabs is None else [file.tabs.private_key]),
    )
