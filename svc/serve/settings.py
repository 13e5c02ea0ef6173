"""Settings of `svc serve`: one TOML file with budgets, keys, models and prices, read once at startup.

Amounts are in base units of the payment token, times in seconds. The file decides what may be spent, so a file that
other users can write is rejected. `config/svc-serve.toml.example` documents each setting and its risk. Fields without
`setting` are constants, which only tests change.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from common.refusal import Refused
from common.settings.errors import SettingError
from common.settings.kinds import Kind, boolean, choice, integer, list_of, number, parsed_string, table_of, text
from common.settings.reader import TomlTable, read_from_sources, setting
from common.settings.toml import parse_toml, table
from svc.core.windows import is_valid_window
from svc.protected_files import ProtectedFile, configuration_folder
from svc.settings import is_loopback

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8403
_MAX_FILE_BYTES: Final = 1 << 18
_KEY_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)

TabUse = Literal["auto", "off", "always"]

_AMOUNT_KIND: Final = integer(1, 2**63 - 1)
_RATE_KIND: Final = integer(0, 2**63 - 1)
_PROVIDER_IDS_KIND: Final = list_of(integer(1, 2**32 - 1))


def _parse_window(text: str) -> str:
    if not is_valid_window(text):
        raise ValueError
    return text


_WINDOW_KIND: Final = parsed_string("1h (async), 24h (batch), <n>h, <n>m or <n>s", _parse_window)


@attrs.frozen(slots=True, kw_only=True)
class KeySettings:
    """Settings of one key. Its budgets apply in addition to those in `[budget]`."""

    file: str = setting(text, "file with the key")
    per_hour: int | None = setting(_AMOUNT_KIND, "spending limit per hour", None)
    per_day: int | None = setting(_AMOUNT_KIND, "spending limit per day", None)
    models: tuple[str, ...] = setting(list_of(text), "models that the key may use (default: all)", ())


@attrs.frozen(slots=True, kw_only=True)
class BudgetSettings:
    """Spending limits per hour and per day for all keys together, and limits per request and per batch."""

    per_hour: int | None = setting(_AMOUNT_KIND, "spending limit per hour", None)
    per_day: int | None = setting(_AMOUNT_KIND, "spending limit per day (default: ten tokens)", None)
    per_request: int | None = setting(
        _AMOUNT_KIND, "highest cost of an answer (default: SVC_MAX_AMOUNT or one token)", None
    )
    per_batch: int | None = setting(
        _AMOUNT_KIND, "highest cost of a batch (default: ten times the limit of an answer)", None
    )


@attrs.frozen(slots=True, kw_only=True)
class BuyingSettings:
    """Terms of purchases. Settings of a model override these terms.

    Rates without `providers` make open orders, which the coordinator's operator can read. Such rates are valid only
    with `open_orders`.
    """

    window: str = setting(_WINDOW_KIND, "time limit of a job", "1h")
    providers: tuple[int, ...] = setting(_PROVIDER_IDS_KIND, "use only these providers", ())
    rate_in: int | None = setting(_RATE_KIND, "offer this rate instead of the asks", None)
    rate_out: int | None = setting(_RATE_KIND, "offer this rate instead of the asks", None)
    open_orders: bool = setting(boolean, "allow rates without providers", False)
    premium: float = setting(number(1, 100), "highest price, as a multiple of the best ask", 2.0)
    hedge_seconds: float = setting(number(0, 86_400), "order from a second provider after this time; 0: never", 0.0)
    final: bool = setting(boolean, "wait until the chain has settled an answer", False)
    max_attempts: int = 3
    claim_seconds: float = 30.0  # a job unclaimed after this time is cancelled, and another provider is tried
    retry_seconds: float = 600.0  # after this time no further attempt starts
    exclude_seconds: float = 600.0  # a failed provider is the last choice for this long


@attrs.frozen(slots=True, kw_only=True)
class ModelSettings:
    """Settings for one model name that programs may request. Missing settings come from `[buying]`."""

    model: str | None = setting(text, "the market's name for the model (default: the same name)", None)
    window: str | None = setting(_WINDOW_KIND, "time limit of a job", None)
    providers: tuple[int, ...] | None = setting(_PROVIDER_IDS_KIND, "use only these providers", None)
    rate_in: int | None = setting(_RATE_KIND, "offer this rate instead of the asks", None)
    rate_out: int | None = setting(_RATE_KIND, "offer this rate instead of the asks", None)
    max_output_tokens: int | None = setting(
        integer(1, 2**32 - 1), "output limit for requests that set none (default: 4096)", None
    )


@attrs.frozen(slots=True, kw_only=True)
class HttpServerSettings:
    """Address and limits of the HTTP server."""

    host: str = setting(text, "address to listen on", DEFAULT_HOST)
    port: int = setting(integer(0, 65_535), "port to listen on; 0: any free port", DEFAULT_PORT)
    hosts: tuple[str, ...] = setting(list_of(text), "further host names that clients may use", ())
    origins: tuple[str, ...] = setting(list_of(text), "web pages that may call the API", ())
    tls_certificate: str | None = setting(text, "PEM file of the certificate", None)
    tls_key: str | None = setting(text, "PEM file of its key", None)
    insecure_http: bool = setting(boolean, "allow plain http on a reachable address", False)
    max_requests: int = 256  # parallel requests: half of the 512 connections that the coordinator allows
    progress_seconds: float = 10.0  # interval of the comments that keep a waiting stream open


def _keys_kind() -> Kind[dict[str, KeySettings]]:
    named = table_of(table(KeySettings))

    def from_toml(value: object) -> dict[str, KeySettings]:
        keys = named.from_toml(value)
        for name in keys:
            if not _KEY_NAME_PATTERN.fullmatch(name):
                raise Refused(f"has the name {name!r}: use 1 to 64 letters, digits, dots, dashes or underscores")
        return keys

    return Kind(named.expected, named.from_text, from_toml)


@attrs.frozen(slots=True, kw_only=True)
class ServeSettings:
    """Settings of `svc serve`.

    Programs may request every model that accepts orders, or with `only_named`, only the models in `models`.
    """

    only_named: bool = setting(boolean, "offer only the models in [models.NAME]", False)
    tabs: TabUse = setting(
        choice("auto", "off", "always"),
        "answer chats in tabs: from the second request in a minute, never, always",
        "auto",
    )
    server: HttpServerSettings = setting(table(HttpServerSettings), "", HttpServerSettings())
    budget: BudgetSettings = setting(table(BudgetSettings), "", BudgetSettings())
    buying: BuyingSettings = setting(table(BuyingSettings), "", BuyingSettings())
    keys: dict[str, KeySettings] = setting(_keys_kind(), "", attrs.Factory(dict))
    models: dict[str, ModelSettings] = setting(table_of(table(ModelSettings)), "", attrs.Factory(dict))

    def __attrs_post_init__(self) -> None:
        """Check rules that involve more than one field. Raises SettingError."""
        places: dict[tuple[str, ...], str | None] = {
            ("buying",): None,
            **{("models", name): name for name in self.models},
        }
        for place, name in places.items():
            if self.rule_for(name).is_open and not self.buying.open_orders:
                raise SettingError.at(
                    place,
                    "has rates without providers, which make open orders that the coordinator's operator can read: set"
                    " providers, or set buying.open_orders = true",
                )
        self._check_server()

    def _check_server(self) -> None:
        server = self.server
        if (server.tls_certificate is None) != (server.tls_key is None):
            raise SettingError.at(("server", "tls_key"), "and server.tls_certificate must be set together")
        if is_loopback(server.host):
            return
        if not self.keys:
            raise SettingError.at(
                ("server", "host"),
                f"{server.host} is reachable from other machines: add at least one key with budgets in [keys.NAME]",
            )
        if server.tls_certificate is None and not server.insecure_http:
            raise SettingError.at(
                ("server", "host"),
                f"{server.host} is reachable from other machines, and plain http exposes keys, prompts and answers: set"
                " server.tls_certificate and server.tls_key, or server.insecure_http = true",
            )

    def rule_for(self, name: str | None) -> "BuyingRule":
        """Return the rule by which jobs of this model name are bought."""
        model_settings, base = self.models.get(name or "", ModelSettings()), self.buying
        has_own_rates = model_settings.rate_in is not None or model_settings.rate_out is not None
        return BuyingRule(
            window=model_settings.window or base.window,
            providers=base.providers if model_settings.providers is None else model_settings.providers,
            rate_in=model_settings.rate_in if has_own_rates else base.rate_in,
            rate_out=model_settings.rate_out if has_own_rates else base.rate_out,
            max_output_tokens=model_settings.max_output_tokens,
        )


@attrs.frozen(slots=True, kw_only=True)
class BuyingRule:
    """Rule by which jobs of one model name are bought: the model's settings, with defaults from `[buying]`."""

    window: str
    providers: tuple[int, ...]
    rate_in: int | None
    rate_out: int | None
    max_output_tokens: int | None

    @property
    def has_rates(self) -> bool:
        return self.rate_in is not None or self.rate_out is not None

    @property
    def is_open(self) -> bool:
        """Return True if the orders are open: any provider may claim them."""
        return self.has_rates and not self.providers


def read_settings(path: Path | None, environment: Mapping[str, str]) -> ServeSettings:
    """Read the given file, or `serve.toml` in the user's configuration folder if it exists.

    Raises Refused with the file and the setting at fault.
    """
    named = path
    path = named or _default_path(environment)
    if path is None:
        return ServeSettings()
    try:
        raw = ProtectedFile(path, "--config", _MAX_FILE_BYTES).read()
    except OSError as error:
        raise SettingError.at((), f"cannot be read: {error.strerror}", path) from None
    if raw is not None:
        return read_from_sources(ServeSettings, TomlTable(parse_toml(raw, path), path))
    if named is not None:
        raise Refused(f"settings file not found: {path} (start from config/svc-serve.toml.example)", "--config")
    return ServeSettings()


def state_folder(path: Path | None, environment: Mapping[str, str]) -> Path:
    """Return `path`, or the default folder of the ledger, the key and the files.

    Raises Refused if `path` is None and the user has no home folder.
    """
    if path is not None:
        return path
    folder = configuration_folder(environment)
    if folder is None:
        raise Refused("--state must name a folder, because this user has no home folder", "--state")
    return folder / "serve"


def _default_path(environment: Mapping[str, str]) -> Path | None:
    folder = configuration_folder(environment)
    return None if folder is None else folder / "serve.toml"
