"""The daemon's configuration: one TOML file, read once into one frozen value.

Every table is read by its own function; a key that nobody reads is refused, and every mistake names key and line.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import attrs

from common.address_book import AddressBook
from common.box import SecretKey
from common.daemon.errors import Fatal
from common.pricing.assets import Modality
from common.refusal import Refused
from common.scalars import read_uint
from common.secp256k1 import Wallet
from svcd.backends.settings import BackendSettings, read_backend
from svcd.base.keys import read_key
from svcd.base.toml import Table
from svcd.discount import Rates
from svcd.probes.settings import ProbeSettings, SlotsSettings, read_probe

# Where in a TOML text a key stands: `tomllib` gives values without positions, and a mistake is named by its line.
#
# A scan of the lines for table headers and `key =`: enough to point at a mistake, and never used to read a value.

_HEADER: Final = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")

KeyPath = tuple[str | int, ...]


def line_of(text: str, path: KeyPath) -> int | None:
    """The line (from 1) of a key, or of the nearest table round it; None when not even that is written out.

    Elements of arrays of tables are counted from 0: `("model", 1, "slots")`.
    """
    places = _places(text)
    for end in range(len(path), 0, -1):
        if path[:end] in places:
            return places[path[:end]]
    return None


def dotted(path: KeyPath) -> str:
    """As messages write it: `model[1].slots`."""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}" if written else part
    return written


def _places(text: str) -> dict[KeyPath, int]:
    places: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}  # how many elements each array of tables has so far
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _resolve(_parts(header[2]), arrays)
            if header[1] == "[[":
                index = arrays.get(table, 0)
                arrays[table] = index + 1
                places.setdefault(table, number)
                table = (*table, index)
            places.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table
            for part in _parts(key[1]):
                path = (*path, part)
                places.setdefault(path, number)
    return places


def _resolve(parts: list[str], arrays: dict[KeyPath, int]) -> KeyPath:
    """A header below an array of tables belongs to the array's last element."""
    path: KeyPath = ()
    for n, part in enumerate(parts):
        path = (*path, part)
        if path in arrays and n < len(parts) - 1:
            path = (*path, arrays[path] - 1)
    return path


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]


T = TypeVar("T")

_MODALITIES: Final[tuple[Modality, ...]] = ("text", "embeddings", "image", "video")
_LARGEST_CONTAINER: Final = 1_073_741_824  # the highest MAX_BLOB_BYTES of a coordinator
_PUBLIC_FILES: Final = frozenset({"addresses_file", "evidence_file"})
_MOST_QUOTES: Final = 64  # of one snapshot of asks


@attrs.frozen(slots=True, kw_only=True)
class ModelConfig:
    """One model that is offered. `asks`: rates per SLA window in seconds; no other window is claimed."""

    name: str
    serves: frozenset[Modality]
    slots: int
    asks: Mapping[int, Rates]
    margin_seconds: float
    poll_seconds: float
    discount_percent: int
    discount_seconds: float
    backend: BackendSettings
    load: ProbeSettings


@attrs.frozen(slots=True, kw_only=True)
class Config:
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
    """Where a daemon is to be found: what can be read without its keys."""

    state_directory: Path
    metrics_host: str
    metrics_port: int


def read_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Fatal, as one line that names the file, the line and the key, when anything is wrong with it."""
    return _read(path, lambda place: _root(place, environ))


def read_whereabouts(path: Path) -> Whereabouts:
    """Fatal like `read_config`, but for what it reads alone."""

    def read(place: _Place) -> Whereabouts:
        metrics = place.below("metrics")
        return Whereabouts(
            state_directory=_state_directory(place), metrics_host=_host(metrics), metrics_port=_port(metrics)
        )

    return _read(path, read)


def _read(path: Path, read: Callable[["_Place"], T]) -> T:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise Fatal(f"{path}: {wrong}") from None
    except OSError as broken:
        raise Fatal(f"{path}: {broken.strerror}") from None
    try:
        return read(_Place((), Table(values)))
    except _Mistake as mistake:
        line = line_of(text, mistake.path)
        where = f"{path}:{line}" if line is not None else str(path)
        raise Fatal(f"{where}: {dotted(mistake.path)}: {mistake.message}") from None


@attrs.frozen(slots=True)
class _Mistake(Exception):
    path: KeyPath
    message: str


@attrs.frozen(slots=True)
class _Place:
    """A table and where it stands. `at` gives what a reader makes of it, and a mistake its whole path."""

    path: KeyPath
    table: Table

    def at(self, read: Callable[[Table], T]) -> T:
        try:
            return read(self.table)
        except Refused as wrong:
            key = tuple(wrong.param.split(".")) if wrong.param else ()
            raise _Mistake((*self.path, *key), wrong.message) from None

    def below(self, key: str) -> "_Place":
        return _Place((*self.path, key), Table(self.at(lambda table: table.object_map(key))))

    def done(self) -> None:
        self.at(lambda table: table.done())


def _root(place: _Place, environ: Mapping[str, str]) -> Config:
    coordinator, gateway, keys = place.below("coordinator"), place.below("gateway"), place.below("keys")
    metrics, limits = place.below("metrics"), place.below("limits")
    config = Config(
        state_directory=_state_directory(place),
        log_level=place.at(lambda table: table.choice("log_level", ("debug", "info", "warning", "error"), "info")),
        shutdown_grace_seconds=limits.at(lambda table: table.number("shutdown_grace_seconds", 0, 86_400, 60)),
        max_container_bytes=limits.at(
            lambda table: table.integer("max_container_bytes", 1024, _LARGEST_CONTAINER, 209_715_200)
        ),
        coordinator_url=coordinator.at(lambda table: table.url("url")).rstrip("/"),
        addresses=coordinator.at(lambda table: table.optional("addresses_file", lambda key: _addresses(table, key))),
        rpc_url=coordinator.at(_rpc_url),
        gateways=tuple(url.rstrip("/") for url in gateway.at(_gateways)),
        gateway_attempts=gateway.at(lambda table: table.integer("attempts", 1, 100, 8)),
        gateway_pause_seconds=gateway.at(lambda table: table.number("pause_seconds", 0.1, 60, 1.5)),
        wallet=keys.at(lambda table: _required_key(table, environ, "wallet", Wallet)),
        box=keys.at(lambda table: read_key(table, environ, "box", SecretKey)),
        evidence_file=keys.at(lambda table: table.optional("evidence_file", table.path)),
        metrics_host=_host(metrics),
        metrics_port=_port(metrics),
        models=_models(place, environ),
        private=_private(place.table.entries, environ),
    )
    for read in (coordinator, gateway, keys, metrics, limits, place):
        read.done()
    return config


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


def _state_directory(place: _Place) -> Path:
    return place.at(lambda table: table.path("state_directory"))


def _host(metrics: _Place) -> str:
    return metrics.at(lambda table: table.text("host", "127.0.0.1"))


def _port(metrics: _Place) -> int:
    return metrics.at(lambda table: table.integer("port", 0, 65_535, 9403))


def _models(place: _Place, environ: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    tables = place.at(lambda table: _tables(table, "model"))
    models = [_model(_Place(("model", n), Table(values)), environ) for n, values in enumerate(tables)]
    for n, model in enumerate(models):
        if model.name in {other.name for other in models[:n]}:
            raise _Mistake(("model", n, "name"), f"{model.name} stands here twice")
    if sum(len(model.asks) for model in models) > _MOST_QUOTES:
        raise _Mistake(("model",), f"more than {_MOST_QUOTES} asks; a snapshot holds no more")
    return tuple(models)


def _model(place: _Place, environ: Mapping[str, str]) -> ModelConfig:
    backend, load = place.below("backend"), place.below("load")
    discount = place.below("discount")
    model = ModelConfig(
        name=place.at(lambda table: table.text("name")),
        serves=place.at(_serves),
        slots=place.at(lambda table: table.integer("slots", 1, 10_000)),
        margin_seconds=place.at(lambda table: table.number("margin_seconds", 0, 86_400, 30)),
        poll_seconds=place.at(lambda table: table.number("poll_seconds", 0.05, 600, 2)),
        asks=_asks(place),
        discount_percent=discount.at(lambda table: table.integer("most_percent", 0, 100, 0)),
        discount_seconds=discount.at(lambda table: table.number("ramp_seconds", 1, 86_400, 600)),
        backend=_below(backend, lambda values: read_backend(values, environ)),
        load=_below(load, read_probe) if place.table.has("load") else SlotsSettings(),
    )
    for read in (discount, place):
        read.done()
    return model


def _asks(place: _Place) -> dict[int, Rates]:
    asks: dict[int, Rates] = {}
    for n, values in enumerate(place.at(lambda table: _tables(table, "ask"))):
        ask = _Place((*place.path, "ask", n), Table(values))
        sla = ask.at(lambda table: table.integer("sla_seconds", 1, 86_400))
        if sla in asks:
            raise _Mistake((*ask.path, "sla_seconds"), f"the window of {sla} seconds stands here twice")
        asks[sla] = Rates(ask.at(lambda table: _rate(table, "rate_in")), ask.at(lambda table: _rate(table, "rate_out")))
        if asks[sla] == Rates(0, 0):
            raise _Mistake(ask.path, "both rates are 0, which withdraws an ask: leave it out instead")
        ask.done()
    return asks


def _rate(table: Table, key: str) -> int:
    """Base units of the payment token per 10^6 units."""
    return read_uint(table.text(key), 128, key)


def _serves(table: Table) -> frozenset[Modality]:
    named = table.texts("serves", ("text",))
    served = frozenset(modality for modality in _MODALITIES if modality in named)
    if not named or len(served) != len(set(named)):
        raise Refused(f"serves must be a list out of {', '.join(_MODALITIES)}", "serves")
    return served


def _gateways(table: Table) -> tuple[str, ...]:
    urls = table.texts("urls")
    for url in urls:
        Table({"urls": url}).url("urls")
    if not urls:
        raise Refused("urls must name at least one gateway", "urls")
    return urls


def _rpc_url(table: Table) -> str | None:
    url = table.optional("rpc_url", table.url)
    if url is not None and not table.has("addresses_file"):
        raise Refused(
            "rpc_url needs addresses_file beside it: contracts that the coordinator names say what it wants", "rpc_url"
        )
    return url


def _addresses(table: Table, key: str) -> AddressBook:
    path = table.path(key)
    try:
        return AddressBook.parse(path.read_bytes())
    except OSError as broken:
        raise Refused(f"{path} cannot be read ({broken.strerror})", key) from None
    except Refused as wrong:
        raise Refused(f"{path}: {wrong.message}", key) from None


def _required_key(table: Table, environ: Mapping[str, str], name: str, make: Callable[[bytes], T]) -> T:
    key = read_key(table, environ, name, make)
    if key is None:
        raise Refused(f"{name}_file, {name}_env or {name}_credential is missing", f"{name}_file")
    return key


def _tables(table: Table, key: str) -> list[Mapping[str, object]]:
    """An array of tables, with at least one."""
    value = table.take(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
        raise Refused(f"at least one [[{key}]] is needed", key)
    return value


def _below(place: _Place, read: Callable[[Mapping[str, object]], T]) -> T:
    return place.at(lambda table: read(table.entries))
