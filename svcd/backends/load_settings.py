"""Settings of a load probe: the `[model.load]` table of the configuration, one class per kind."""

from typing import Final

import attrs

from common.settings.kinds import list_of, number, table_of, text
from common.settings.reader import setting
from common.settings.toml import variants
from svcd.base.json_path import JsonPath
from svcd.base.kinds import http_url, single_value_path

PROBE_TIMEOUT_S: Final = 2.0
_FULL_AT_KIND: Final = number(0.001, 1e9)


@attrs.frozen(slots=True, kw_only=True)
class PrometheusSettings:
    url: str = setting(http_url, "URL of the server's metrics")
    full_at: float | None = setting(
        _FULL_AT_KIND, "number of requests at which the server is full (default: slots)", None
    )
    labels: dict[str, str] = setting(table_of(text), "labels that a series must have", attrs.Factory(dict))
    running: tuple[str, ...] = setting(
        list_of(text), "series of running requests (default: the series of known servers)", ()
    )
    waiting: tuple[str, ...] = setting(
        list_of(text), "series of waiting requests (default: the series of known servers)", ()
    )
    timeout_s: float = PROBE_TIMEOUT_S


@attrs.frozen(slots=True, kw_only=True)
class JsonSettings:
    url: str = setting(http_url, "URL that returns the JSON")
    path: JsonPath = setting(single_value_path, "path to the number in the JSON")
    full_at: float = setting(_FULL_AT_KIND, "number at which the server is full", 1.0)
    timeout_s: float = PROBE_TIMEOUT_S


@attrs.frozen(slots=True, kw_only=True)
class SlotsSettings:
    """Use the share of busy slots as the load, without a request to a server."""


ProbeSettings = PrometheusSettings | JsonSettings | SlotsSettings
PROBES: Final[dict[str, type[ProbeSettings]]] = {
    "prometheus": PrometheusSettings,
    "json": JsonSettings,
    "slots": SlotsSettings,
}
probe_kind: Final = variants("kind", PROBES, default="slots")
