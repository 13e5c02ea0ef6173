"""Settings of `svc serve`: one TOML file with budgets, keys, models and prices, read once at startup.

Amounts are in base units of the payment token, times in seconds. The file decides what may be spent, so a file that
other users can write is rejected. `config/svc-serve.toml.example` documents each setting and its risk.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from common.refusal import Refused
from svc.core.windows import is_window
from svc.own_files import OwnFile, configuration_folder

FILE_VARIABLE: Final = "SVC_SERVE_CONFIG"
FOLDER_VARIABLE: Final = "SVC_SERVE_STATE"
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8403
_MAX_FILE_BYTES: Final = 1 << 18
_KEY_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)

Amount = Annotated[int, Meta(ge=1)]
ProviderId = Annotated[int, Meta(ge=1, lt=2**32)]
Rate = Annotated[int, Meta(ge=0)]


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one key. `file` holds the key. Its budgets apply in addition to those in `[budget]`."""

    file: str
    per_hour: Amount | None = None
    per_day: Amount | None = None
    models: tuple[str, ...] = ()


class BudgetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on what all keys together may spend per hour and per day, and per request and per batch."""

    per_hour: Amount | None = None
    per_day: Amount | None = None
    per_request: Amount | None = None
    per_batch: Amount | None = None


class Buying(Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are bought. Settings of a model override these.

    With `final`, answers wait for their block. `providers` limits purchases to these providers. `rate_in` and
    `rate_out` bid these rates instead of a provider's ask. Rates without `providers` make open orders, which the
    coordinator's operator can read; `open_orders` must allow them.
    """

    window: str = "1h"
    providers: tuple[ProviderId, ...] = ()
    rate_in: Rate | None = None
    rate_out: Rate | None = None
    open_orders: bool = False
    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    premium: Annotated[float, Meta(ge=1, le=100)] = 2.0
    claim_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 30.0
    retry_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    exclude_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    hedge_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    final: bool = False


class ModelSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Model name offered to programs. `model` is the market's name for it, if different."""

    model: str | None = None
    window: str | None = None
    providers: tuple[ProviderId, ...] | None = None
    rate_in: Rate | None = None
    rate_out: Rate | None = None
    open_orders: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, lt=2**32)] | None = None


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    """Address and limits of the HTTP server.

    `hosts`: further host names that clients may use. `origins`: web pages that may call the API.
    """

    host: str = DEFAULT_HOST
    port: Annotated[int, Meta(ge=0, le=65_535)] = DEFAULT_PORT
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    insecure_http: bool = False
    concurrent: Annotated[int, Meta(ge=1, le=400)] = 256
    progress_seconds: Annotated[float, Meta(ge=1, le=300)] = 10.0


class ServeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `svc serve`.

    Programs may request every model that accepts orders. With `only_named`, they may request only those in `models`.
    """

    server: Server = field(default_factory=Server)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    buying: Buying = field(default_factory=Buying)
    keys: dict[str, KeySettings] = field(default_factory=dict)
    models: dict[str, ModelSettings] = field(default_factory=dict)
    only_named: bool = False

    def check(self) -> None:
        """Check rules that involve more than one field. Raises Refused."""
        for name in self.keys:
            if not _KEY_NAME_PATTERN.fullmatch(name):
                raise Refused(f"keys.{name!r}: the name must have 1 to 64 letters, digits, dots or dashes", "keys")
        rules = {"buying": self.rule(None), **{f"models.{name}": self.rule(name) for name in self.models}}
        for where, rule in rules.items():
            if not is_window(rule.window):
                message = f"{where}.window must be one of 1h (async), 24h (batch), <n>h, <n>m or <n>s"
                raise Refused(message, f"{where}.window")
            if rule.is_open and not rule.open_orders:
                message = (
                    f"{where}: rates without providers make open orders, which the coordinator's operator can read:"
                    " set providers, or set open_orders = true"
                )
                raise Refused(message, f"{where}.open_orders")
        self._check_server()

    def _check_server(self) -> None:
        server = self.server
        if (server.tls_certificate is None) != (server.tls_key is None):
            raise Refused("set both server.tls_certificate and server.tls_key, or neither", "server.tls_key")
        if is_loopback(server.host):
            return
        if not self.keys:
            message = (
                f"server.host {server.host} is reachable from other machines: add at least one key with budgets in"
                " [keys.NAME]"
            )
            raise Refused(message, "server.host")
        if server.tls_certificate is None and not server.insecure_http:
            message = (
                f"server.host {server.host} is reachable from other machines, and plain http exposes keys, prompts and"
                " answers: set server.tls_certificate and server.tls_key, or server.insecure_http = true"
            )
            raise Refused(message, "server.tls_certificate")

    def rule(self, name: str | None) -> "BuyingRule":
        """Return how jobs of this model name are bought."""
        model_settings, base = self.models.get(name or "", ModelSettings()), self.buying
        has_own_rates = model_settings.rate_in is not None or model_settings.rate_out is not None
        return BuyingRule(
            window=model_settings.window or base.window,
            providers=base.providers if model_settings.providers is None else model_settings.providers,
            rate_in=model_settings.rate_in if has_own_rates else base.rate_in,
            rate_out=model_settings.rate_out if has_own_rates else base.rate_out,
            open_orders=base.open_orders if model_settings.open_orders is None else model_settings.open_orders,
            max_output_tokens=model_settings.max_output_tokens,
        )


class BuyingRule(Struct, frozen=True):
    """Effective settings of one model name. Missing values come from `[buying]`."""

    window: str
    providers: tuple[int, ...]
    rate_in: int | None
    rate_out: int | None
    open_orders: bool
    max_output_tokens: int | None

    @property
    def has_rates(self) -> bool:
        return self.rate_in is not None or self.rate_out is not None

    @property
    def is_open(self) -> bool:
        return self.has_rates and not self.providers


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_settings(path: Path | None, environment: Mapping[str, str]) -> ServeSettings:
    """Read the given file, or `serve.toml` in the user's configuration folder if there is one.

    Raises Refused with the name of the wrong setting.
    """
    named = path or (Path(text) if (text := environment.get(FILE_VARIABLE)) else None)
    path = named or _default_path(environment)
    if path is None:
        return ServeSettings()
    file = OwnFile(path, FILE_VARIABLE, _MAX_FILE_BYTES)
    try:
        raw = file.read()
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}", FILE_VARIABLE) from None
    if raw is None:
        if named is not None:
            raise Refused(f"settings file not found: {path} (start from config/svc-serve.toml.example)", FILE_VARIABLE)
        return ServeSettings()
    try:
        settings = msgspec.toml.decode(raw, type=ServeSettings)
    # msgspec raises ValueError for an integer with thousands of digits
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(f"{path}: {error}", FILE_VARIABLE) from None
    except RecursionError:
        raise Refused(f"{path}: arrays or tables are nested too deeply", FILE_VARIABLE) from None
    settings.check()
    return settings


def state_folder(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the folder of the ledger, the key and the files of batches. Raises Refused without a home folder."""
    named = given or (Path(text) if (text := environment.get(FOLDER_VARIABLE)) else None)
    if named is not None:
        return named
    folder = configuration_folder(environment)
    if folder is None:
        raise Refused(
            f"{FOLDER_VARIABLE} or --state must name a folder, because this user has no home folder", FOLDER_VARIABLE
        )
    return folder / "serve"


def _default_path(environment: Mapping[str, str]) -> Path | None:
    folder = configuration_folder(environment)
    return None if folder is None else folder / "serve.toml"
