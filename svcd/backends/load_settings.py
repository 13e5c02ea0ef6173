"""Settings of a load probe: the `[model.load]` table of the configuration, one class per kind."""

from typing import Final

import attrs

from common.settings.kinds import listed, mapping, number, text
from common.settings.reader import setting
from common.settings.toml import variants
from svcd.base.json_path import JsonPath
from svcd.base.kinds import http_url, single_path

TIMEOUT_S: Final = 2.0
_FULL_AT: Final = number(0.001, 1e9)


@attrs.frozen(slots=True, kw_only=True)
class PrometheusSettings:
    url: str = setting(http_url, "the server's metrics")
    full_at: float | None = setting(_FULL_AT, "requests at which the server is full (default: slots)", None)
    labels: dict[str, str] = setting(mapping(text), "labels that a series must have", attrs.Factory(dict))
    running: tuple[str, ...] = setting(listed(text), "series of running requests (default: known servers)", ())
    waiting: tuple[str, ...] = setting(listed(text), "series of waiting requests (default: known servers)", ())
    timeout_s: float = TIMEOUT_S


@attrs.frozen(slots=True, kw_only=True)
class JsonSettings:
    url: str = setting(http_url, "address of the JSON answer")
    path: JsonPath = setting(single_path, "place of the number")
    full_at: float = setting(_FULL_AT, "number at which the server is full", 1.0)
    timeout_s: float = TIMEOUT_S


@attrs.frozen(slots=True, kw_only=True)
class SlotsSettings:
    """Use the share of busy slots as the load, without a request to a server."""


ProbeSettings = PrometheusSettings | JsonSettings | SlotsSettings
PROBES: Final[dict[str, type[ProbeSettings]]] = {
    "prometheus": PrometheusSettings,
    "json": JsonSettings,
    "slots": SlotsSettings,
}
probe: Final = variants("kind", PROBES, default="slots")
