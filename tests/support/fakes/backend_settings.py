"""Settings of backends and probes, built from tables as in svcd.toml. Tests may also set the classes' constants."""

from collections.abc import Mapping
from typing import Any

import attrs

from common.settings.kinds import Kind
from common.settings.reader import settings_of
from svcd.backends.load_settings import PROBES, ProbeSettings, probe_kind
from svcd.backends.settings import BACKENDS, BackendSettings, backend_kind, with_api_key


def read_backend(table: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> BackendSettings:
    return with_api_key(_read(backend_kind, BACKENDS, table), environ or {})


def read_probe(table: Mapping[str, Any]) -> ProbeSettings:
    return _read(probe_kind, PROBES, table)


def _read(kind: Kind[Any], classes: Mapping[str, type], table: Mapping[str, Any]) -> Any:
    cls = classes.get(table.get("kind", ""))
    fields = set() if cls is None else {field.name for field in attrs.fields(cls)}
    constants = fields - {setting.field for setting in (settings_of(cls) if cls else ())}
    read = kind.from_toml({key: value for key, value in table.items() if key not in constants})
    return attrs.evolve(read, **{key: value for key, value in table.items() if key in constants})
