"""Settings of `svc serve`: one TOML file that says who may spend how much on what, read once at the start.

Every amount is in base units of the payment token, every time in seconds. A file that others could have written is not
believed, since it says how much may be spent; `config/svc-serve.toml.example` has each setting with its risk.
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
_LONGEST: Final = 1 << 18
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)

Amount = Annotated[int, Meta(ge=1)]
ProviderId = Annotated[int, Meta(ge=1, lt=2**32)]
RateSet = Annotated[int, Meta(ge=0)]


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the local API. `file` holds its text; its budgets come beside those of all keys together."""

    file: str
    per_hour: Amount | None = None
    per_day: Amount | None = None
    models: tuple[str, ...] = ()


class BudgetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What all keys together may spend in any hour and any day. `per_request` bounds an answer, `per_batch` a batch."""

    per_hour: Amount | None = None
    per_day: Amount | None = None
    per_request: Amount | None = None
    per_batch: Amount | None = None


class Buying(Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are bought, for every model that does not say otherwise.

    `final`: answers wait for the chain, and are never given before their block. `providers`: none but these. `rate_in`
    and `rate_out` bid rates of one's own instead of what is asked; without `providers` that is an open order, which
    whoever runs the coordinator can read, so that `open_orders` must allow it.
    """

    window: str = "1h"
    providers: tuple[ProviderId, ...] = ()
    rate_in: RateSet | None = None
    rate_out: RateSet | None = None
    open_orders: bool = False
    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    premium: Annotated[float, Meta(ge=1, le=100)] = 2.0
    claim_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 30.0
    retry_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    exclude_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    hedge_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    final: bool = False


class ModelSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A name that programs ask for. `model` is the market's, the name itself unless given."""

    model: str | None = None
    window: str | None = None
    providers: tuple[ProviderId, ...] | None = None
    rate_in: RateSet | None = None
    rate_out: RateSet | None = None
    open_orders: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, lt=2**32)] | None = None


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    """Where it listens. `hosts`: names that callers may use for it beside its own address; `origins`: web pages that
    may call it, which all others may not."""

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
    """`models` empty: every model that takes orders may be asked for under its own name. `only_named`: none but those
    that have a table of their own here."""

    server: Server = field(default_factory=Server)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    buying: Buying = field(default_factory=Buying)
    keys: dict[str, KeySettings] = field(default_factory=dict)
    models: dict[str, ModelSettings] = field(default_factory=dict)
    only_named: bool = False

    def check(self) -> None:
        """Raises Refused for what no single field says."""
        for name in self.keys:
            if not _NAME.fullmatch(name):
                raise Refused(f"keys.{name!r} must have a name of 1 to 64 letters, digits, dots or dashes", "keys")
        rules = {"buying": self.rule(None), **{f"models.{name}": self.rule(name) for name in self.models}}
        for where, rule in rules.items():
            if not is_window(rule.window):
                message = f"{where}.window must be one of 1h (async), 24h (batch), <n>h, <n>m or <n>s"
                raise Refused(message, f"{where}.window")
            if rule.is_open and not rule.open_orders:
                message = (
                    f"{where}: rates without providers make open orders, which whoever runs the coordinator can read:"
                    " name providers, or set open_orders = true"
                )
                raise Refused(message, f"{where}.open_orders")
        self._check_server()

    def _check_server(self) -> None:
        server = self.server
        if (server.tls_certificate is None) != (server.tls_key is None):
            raise Refused("server.tls_certificate and server.tls_key go together", "server.tls_key")
        if is_loopback(server.host):
            return
        if not self.keys:
            message = (
                f"server.host {server.host} is reached by others: whoever has a key there spends from the wallet and"
                " reads answers; name at least one key in [keys.NAME], with budgets"
            )
            raise Refused(message, "server.host")
        if server.tls_certificate is None and not server.insecure_http:
            message = (
                f"server.host {server.host} is reached by others: over plain http whoever is on the way reads keys,"
                " prompts and answers; set server.tls_certificate and server.tls_key, or server.insecure_http = true"
            )
            raise Refused(message, "server.tls_certificate")

    def rule(self, asked: str | None) -> "Rule":
        """How a job for a name is bought."""
        own, base = self.models.get(asked or "", ModelSettings()), self.buying
        rated = own.rate_in is not None or own.rate_out is not None
        return Rule(
            window=own.window or base.window,
            providers=base.providers if own.providers is None else own.providers,
            rate_in=own.rate_in if rated else base.rate_in,
            rate_out=own.rate_out if rated else base.rate_out,
            open_orders=base.open_orders if own.open_orders is None else own.open_orders,
            max_output_tokens=own.max_output_tokens,
        )


class Rule(Struct, frozen=True):
    """How jobs of one name are bought, with what the model does not say taken from `buying`."""

    window: str
    providers: tuple[int, ...]
    rate_in: int | None
    rate_out: int | None
    open_orders: bool
    max_output_tokens: int | None

    @property
    def bids(self) -> bool:
        return self.rate_in is not None or self.rate_out is not None

    @property
    def is_open(self) -> bool:
        return self.bids and not self.providers


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_settings(path: Path | None, environment: Mapping[str, str]) -> ServeSettings:
    """The settings of a file: the named one, else `serve.toml` in the user's configuration folder where there is one.
    Raises Refused, naming the setting and what it may be."""
    named = path or (Path(text) if (text := environment.get(FILE_VARIABLE)) else None)
    place = named or _usual(environment)
    if place is None:
        return ServeSettings()
    file = OwnFile(place, FILE_VARIABLE, _LONGEST)
    try:
        raw = file.read()
    except OSError as error:
        raise Refused(f"{place} cannot be read: {error.strerror}", FILE_VARIABLE) from None
    if raw is None:
        if named is not None:
            raise Refused(f"{place} must be the file of settings, and there is no such file", FILE_VARIABLE)
        return ServeSettings()
    try:
        settings = msgspec.toml.decode(raw, type=ServeSettings)
    except (msgspec.DecodeError, ValueError) as wrong:  # an integer of thousands of digits is a plain ValueError
        raise Refused(f"{place}: {wrong}", FILE_VARIABLE) from None
    except RecursionError:
        raise Refused(f"{place} must not nest its arrays or tables so deep", FILE_VARIABLE) from None
    settings.check()
    return settings


def state_folder(given: Path | None, environment: Mapping[str, str]) -> Path:
    """The folder of the ledger, the key and the files of batches. Raises Refused where there is no place for it."""
    named = given or (Path(text) if (text := environment.get(FOLDER_VARIABLE)) else None)
    if named is not None:
        return named
    folder = configuration_folder(environment)
    if folder is None:
        raise Refused(f"{FOLDER_VARIABLE} or --state must name a folder: there is no home folder", FOLDER_VARIABLE)
    return folder / "serve"


def _usual(environment: Mapping[str, str]) -> Path | None:
    folder = configuration_folder(environment)
    return None if folder is None else folder / "serve.toml"
