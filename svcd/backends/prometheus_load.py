"""Read the load of a model server from its Prometheus metrics.

load = max((running + waiting) / full_at, cache usage), at most 1

Servers and their versions name these metrics differently. This module lists the known names, and the configuration can
name others. The comparison treats `:` as `_`, and ignores the prefix that some frameworks add.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from svcd.backends.load_request import fetch_body
from svcd.backends.load_settings import PrometheusSettings

_RUNNING_SERIES: Final = (
    "vllm_num_requests_running",
    "sglang_num_running_reqs",
    "tgi_batch_current_size",
    "llamacpp_requests_processing",
    "lmdeploy_num_requests_running",
)
_WAITING_SERIES: Final = (
    "vllm_num_requests_waiting",
    "vllm_num_requests_swapped",
    "sglang_num_queue_reqs",
    "tgi_queue_size",
    "llamacpp_requests_deferred",
    "lmdeploy_num_requests_waiting",
)
_CACHE_USAGE_SERIES: Final = (
    "vllm_kv_cache_usage_perc",
    "vllm_gpu_cache_usage_perc",
    "sglang_token_usage",
    "llamacpp_kv_cache_usage_ratio",
    "lmdeploy_gpu_cache_usage_perc",
)
_FRAMEWORK_PREFIX_PATTERN: Final = re.compile("^ray_")

# The parser blocks the event loop and takes time quadratic in the length of a line.
MAX_LINE_CHARS: Final = 4096
MAX_PARSED_CHARS: Final = 256 * 1024


@attrs.frozen(slots=True)
class PrometheusProbe:
    settings: PrometheusSettings
    slots: int
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        text = await fetch_body(self.client, self.settings.url, self.settings.timeout_s)
        return (
            None if text is None else load_from_exposition(text.decode("utf-8", "replace"), self.settings, self.slots)
        )


def load_from_exposition(text: str, settings: PrometheusSettings, slots: int) -> float | None:
    """Return the load, or None if the text lacks all the series, or if a series is malformed or too long."""
    running_names = settings.running or _RUNNING_SERIES
    waiting_names = settings.waiting or _WAITING_SERIES
    lines = _matching_lines(text, [*running_names, *waiting_names, *_CACHE_USAGE_SERIES])
    if sum(map(len, lines)) > MAX_PARSED_CHARS or any(len(line) > MAX_LINE_CHARS for line in lines):
        return None
    try:
        families = text_string_to_metric_families("\n".join(lines))
        samples = [sample for family in families for sample in family.samples]
    except (ValueError, KeyError, IndexError, OverflowError):  # raised by the parser for malformed lines
        return None
    running = _sample_values(samples, running_names, settings.labels)
    waiting = _sample_values(samples, waiting_names, settings.labels)
    usage = _sample_values(samples, _CACHE_USAGE_SERIES, settings.labels)
    if not running and not waiting and not usage:
        return None

    # Each engine behind the URL has its own series. Add the requests of all engines, but use the usage of the fullest
    # cache, because that engine stalls first.
    requests = sum(running) + sum(waiting)
    return max(0.0, min(1.0, max([requests / (settings.full_at or slots), *usage])))


def _matching_lines(text: str, names: Iterable[str]) -> list[str]:
    """Return the lines with samples of these series. The search takes time linear in the length of the text."""
    wanted = {_base_series_name(name) for name in names}
    found = re.finditer(r"^[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[^\n]*", text, re.MULTILINE)
    return [line[0] for line in found if _base_series_name(line[1]) in wanted]


def _sample_values(samples: Iterable[Sample], names: Iterable[str], labels: dict[str, str]) -> list[float]:
    wanted = {_base_series_name(name) for name in names}
    values = [
        _to_float(sample.value)
        for sample in samples
        if _base_series_name(sample.name) in wanted and labels.items() <= sample.labels.items()
    ]
    return [value for value in values if math.isfinite(value)]


def _to_float(value: float) -> float:
    """Convert a sample's value. The parser returns a whole number as an int, which may be too large for a float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _base_series_name(name: str) -> str:
    return _FRAMEWORK_PREFIX_PATTERN.sub("", name.replace(":", "_"))
