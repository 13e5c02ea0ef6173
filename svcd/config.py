"""Read the daemon's configuration, a TOML file, into a frozen value. Unknown keys are rejected."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import attrs
import msgspec
from msgspec import Meta

from common.address_book import AddressBook
from common.api.limits import LONGEST_SLA, SNAPSHOT_QUOTES
from common.box import SecretKey
from common.pricing.model_input import Modality
from common.refusal import Refused
from common.scalars import read_uint
from common.secp256k1 import Wallet
from svcd.backends.discount import AskRates
from svcd.backends.load_settings import ProbeSettings, SlotsSettings
from svcd.backends.settings import BackendSettings, with_api_key
from svcd.base.keys import KeySource, read_key, read_wallet
from svcd.base.toml import KeyPath, Mistake, Text, TomlTable, Url, read_file, read_table

T = TypeVar("T")
Port = Annotated[int, Meta(ge=0, le=65_535)]

_PUBLIC_FILES: Final = frozenset({"addresses_file", "evidence_file"})


class CoordinatorTable(TomlTable, frozen=True, kw_only=True):
    url: Url
    addresses_file: Path | None = None
    rpc_url: Url | None = None

    def __post_init__(self) -> None:
        if self.rpc_url is not None and self.addresses_file is None:
            raise Refused(
                "needs addresses_file beside it: contracts that the coordinator names say what it wants", "rpc_url"
            )


class GatewayTable(TomlTable, frozen=True, kw_only=True):
    urls: Annotated[tuple[Url, ...], Meta(min_length=1)]
    attempts: Annotated[int, Meta(ge=1, le=100)] = 8
    pause_seconds: Annotated[float, Meta(ge=0.1, le=60)] = 1.5


class KeysTable(TomlTable, frozen=True, kw_only=True):
    wallet_file: Path | None = None
    wallet_env: Text | None = None
    wallet_credential: Text | None = None
    wallet_password_file: Path | None = None
    wallet_password_env: Text | None = None
    wallet_password_credential: Text | None = None
    box_file: Path | None = None
    box_env: Text | None = None
    box_credential: Text | None = None
    evidence_file: Path | None = None


class MetricsTable(TomlTable, frozen=True, kw_only=True):
    host: Text = "127.0.0.1"
    port: Port = 9403


class LimitsTable(TomlTable, frozen=True, kw_only=True):
    shutdown_grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    # At most the highest MAX_BLOB_BYTES of a coordinator.
    max_container_bytes: Annotated[int, Meta(ge=1024, le=1_073_741_824)] = 209_715_200


class DiscountTable(TomlTable, frozen=True, kw_only=True):
    most_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    ramp_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 600.0


class Rate(int):
    """Base units of the payment token per 10^6 units; in the file a string, because it may exceed 64 bits."""

    @classmethod
    def from_toml(cls, value: object) -> "Rate":
        if not isinstance(value, str):
            raise Refused("must be a decimal number in a string")
        try:
            return cls(read_uint(value, 128, "rate"))
        except Refused as error:
            raise Refused(error.message.removeprefix("rate ")) from None


class AskTable(TomlTable, frozen=True, kw_only=True):
    sla_seconds: Annotated[int, Meta(ge=1, le=LONGEST_SLA)]
    rate_in: Rate
    rate_out: Rate

    def __post_init__(self) -> None:
        if not self.rate_in and not self.rate_out:
            raise Refused("both rates are 0, which withdraws an ask: leave it out instead")


class Amount(Rate):
    """Base units of the payment token, as a string for the same reason."""


class AheadTable(TomlTable, frozen=True, kw_only=True):
    """Limits for running a model's jobs before their claim is in a block."""

    most_amount: Amount  # of one job
    most_in_flight: Amount  # of all at a time: what may be lost at most
    settled_jobs: Annotated[int, Meta(ge=1, le=1_000_000)] = 5  # of the owner, by this daemon's own record


class ModelConfig(TomlTable, frozen=True, kw_only=True):
    """Model to offer. Only the SLA windows of its asks are claimed."""

    name: Text
    serves: Annotated[frozenset[Modality], Meta(min_length=1)] = frozenset({"text"})
    slots: Annotated[int, Meta(ge=1, le=10_000)]
    ask: Annotated[tuple[AskTable, ...], Meta(min_length=1)]
    margin_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    poll_seconds: Annotated[float, Meta(ge=0.05, le=600)] = 2.0
    discount: DiscountTable = DiscountTable()
    ahead: AheadTable | None = None
    backend: BackendSettings
    load: ProbeSettings = SlotsSettings()

    @property
    def asks(self) -> dict[int, AskRates]:
        """The rates per SLA window in seconds."""
        return {ask.sla_seconds: AskRates(ask.rate_in, ask.rate_out) for ask in self.ask}


class ConfigFile(TomlTable, frozen=True, kw_only=True):
    state_directory: Path
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    coordinator: CoordinatorTable
    gateway: GatewayTable
    keys: KeysTable = KeysTable()
    metrics: MetricsTable = MetricsTable()
    limits: LimitsTable = LimitsTable()
    model: Annotated[tuple[ModelConfig, ...], Meta(min_length=1)]


class LocationFile(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the file that `Whereabouts` needs."""

    state_directory: Path
    metrics: MetricsTable = MetricsTable()


@attrs.frozen(slots=True, kw_only=True)
class DaemonConfig:
    state_directory: Path
    shutdown_grace_seconds: float
    log_level: str
    max_container_bytes: int
    coordinator_url: str
    addresses: AddressBook | None
    rpc_url: str | None = attrs.field(default=None, repr=False)  # may carry a key
    gateways: tuple[str, ...]
    gateway_attempts: int
    gateway_pause_seconds: float
    wallet: Wallet
    box: SecretKey | None
    evidence_file: Path | None
    metrics_host: str
    metrics_port: int
    models: tuple[ModelConfig, ...]
    private: tuple[Path, ...] = ()  # what a program of an exec backend must not reach

    @property
    def slots(self) -> dict[str, int]:
        return {model.name: model.slots for model in self.models}


@attrs.frozen(slots=True, kw_only=True)
class Whereabouts:
    """Journal and port of a daemon, readable without its keys."""

    state_directory: Path
    metrics_host: str
    metrics_port: int


def read_config(path: Path, environ: Mapping[str, str] = os.environ) -> DaemonConfig:
    """Read the configuration. Raise `Fatal` with the file, line and key of a mistake."""
    beside = path.absolute().parent / "credentials"
    if not environ.get("CREDENTIALS_DIRECTORY") and beside.is_dir():
        # Outside of the unit, for the commands of an operator: the files that it hands over.
        environ = {**environ, "CREDENTIALS_DIRECTORY": str(beside)}
    return read_file(path, lambda values: _config(values, environ))


def read_whereabouts(path: Path) -> Whereabouts:
    """Read only the places. Raise `Fatal` like `read_config`."""
    file = read_file(path, lambda values: read_table(values, LocationFile))
    return Whereabouts(
        state_directory=file.state_directory, metrics_host=file.metrics.host, metrics_port=file.metrics.port
    )


def _config(values: Mapping[str, object], environ: Mapping[str, str]) -> DaemonConfig:
    file = read_table(_with_default_probes(values), ConfigFile)
    keys = file.keys
    wallet_at = KeySource("wallet", keys.wallet_file, keys.wallet_env, keys.wallet_credential)
    password_at = KeySource(
        "wallet_password", keys.wallet_password_file, keys.wallet_password_env, keys.wallet_password_credential
    )
    box_at = KeySource("box", keys.box_file, keys.box_env, keys.box_credential)
    wallet = _at(("keys",), lambda: read_wallet(wallet_at, password_at, environ))
    if wallet is None:
        raise Mistake.at(("keys", "wallet_file"), "wallet_file, wallet_env or wallet_credential is missing")
    return DaemonConfig(
        state_directory=file.state_directory,
        log_level=file.log_level,
        shutdown_grace_seconds=file.limits.shutdown_grace_seconds,
        max_container_bytes=file.limits.max_container_bytes,
        coordinator_url=file.coordinator.url.rstrip("/"),
        addresses=_addresses(file.coordinator.addresses_file),
        rpc_url=file.coordinator.rpc_url,
        gateways=tuple(url.rstrip("/") for url in file.gateway.urls),
        gateway_attempts=file.gateway.attempts,
        gateway_pause_seconds=file.gateway.pause_seconds,
        wallet=wallet,
        box=_at(("keys",), lambda: read_key(box_at, environ, SecretKey)),
        evidence_file=keys.evidence_file,
        metrics_host=file.metrics.host,
        metrics_port=file.metrics.port,
        models=_models(file.model, environ),
        private=_private(values, environ),
    )


def _with_default_probes(values: Mapping[str, object]) -> dict[str, object]:
    """The values, with the kind of each `[model.load]` that names none."""
    models = values.get("model")
    if not isinstance(models, list):
        return dict(values)
    named = []
    for model in models:
        load = model.get("load") if isinstance(model, Mapping) else None
        named.append({**model, "load": {"kind": "slots", **load}} if isinstance(load, Mapping) else model)
    return {**values, "model": named}


def _models(models: tuple[ModelConfig, ...], environ: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    for n, model in enumerate(models):
        if model.name in {other.name for other in models[:n]}:
            raise Mistake.at(("model", n, "name"), f"{model.name} stands here twice")
        windows = [ask.sla_seconds for ask in model.ask]
        for k, window in enumerate(windows):
            if window in windows[:k]:
                place = ("model", n, "ask", k, "sla_seconds")
                raise Mistake.at(place, f"the window of {window} seconds stands here twice")
    if sum(len(model.ask) for model in models) > SNAPSHOT_QUOTES:
        raise Mistake.at(("model",), f"all models must have at most {SNAPSHOT_QUOTES} asks: a snapshot holds no more")
    return tuple(_with_keys(model, ("model", n, "backend"), environ) for n, model in enumerate(models))


def _with_keys(model: ModelConfig, path: KeyPath, environ: Mapping[str, str]) -> ModelConfig:
    backend = _at(path, lambda: with_api_key(model.backend, environ))
    return msgspec.structs.replace(model, backend=backend)


def _at(path: KeyPath, read: Callable[[], T]) -> T:
    try:
        return read()
    except Mistake as mistake:
        raise mistake.below(path) from None


def _addresses(path: Path | None) -> AddressBook | None:
    if path is None:
        return None
    place = ("coordinator", "addresses_file")
    try:
        return AddressBook.parse(path.read_bytes())
    except OSError as error:
        raise Mistake.at(place, f"{path} cannot be read ({error.strerror})") from None
    except Refused as error:
        raise Mistake.at(place, f"{path}: {error.message}") from None


def _private(values: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The state directory, systemd's credentials, and every file that a key is read from."""
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    found = [values["state_directory"], *([credentials] if credentials else []), *_key_files(values)]
    return tuple(Path(str(each)) for each in found)


def _key_files(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for each in value:
            yield from _key_files(each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if key.endswith("_file") and key not in _PUBLIC_FILES:
                yield each
            else:
                yield from _key_files(each)
