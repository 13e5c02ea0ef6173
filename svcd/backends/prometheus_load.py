"""Load of a model server, read from the Prometheus text that it serves.

    load = the largest of   (running + waiting) / full_at   and   its cache's use,   at most 1

Servers name these metrics differently, and have renamed them between versions. The known names are listed once, and a
configuration may name others. Names are compared with `:` as `_`, and without the prefix that some frameworks add.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from svcd.backends.load_request import fetch
from svcd.backends.load_settings import PrometheusSettings

_RUNNING: Final = (
    "vllm_num_requests_running",
    "sglang_num_running_reqs",
    "tgi_batch_current_size",
    "llamacpp_requests_processing",
    "lmdeploy_num_requests_running",
)
_WAITING: Final = (
    "vllm_num_requests_waiting",
    "vllm_num_requests_swapped",
    "sglang_num_queue_reqs",
    "tgi_queue_size",
    "llamacpp_requests_deferred",
    "lmdeploy_num_requests_waiting",
)
_USAGE: Final = (
    "vllm_kv_cache_usage_perc",
    "vllm_gpu_cache_usage_perc",
    "sglang_token_usage",
    "llamacpp_kv_cache_usage_ratio",
    "lmdeploy_gpu_cache_usage_perc",
)
_PREFIXES: Final = re.compile("^ray_")
# The parser is written in Python, and quadratic in the length of a line. It runs on the event loop.
MAX_LINE_CHARS: Final = 4096
MAX_PARSED_CHARS: Final = 256 * 1024


@attrs.frozen(slots=True)
class PrometheusProbe:
    settings: PrometheusSettings
    slots: int
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        text = await fetch(self.client, self.settings.url, self.settings.timeout_s)
        return None if text is None else load_in_exposition(text.decode("utf-8", "replace"), self.settings, self.slots)


def load_in_exposition(text: str, settings: PrometheusSettings, slots: int) -> float | None:
    """Return None if the text has none of the series, or if one of them is malformed or too long."""
    running_names = settings.running or _RUNNING
    waiting_names = settings.waiting or _WAITING
    lines = _lines_of(text, [*running_names, *waiting_names, *_USAGE])
    if sum(map(len, lines)) > MAX_PARSED_CHARS or any(len(line) > MAX_LINE_CHARS for line in lines):
        return None
    try:
        families = text_string_to_metric_families("\n".join(lines))
        samples = [sample for family in families for sample in family.samples]
    except (ValueError, KeyError, IndexError, OverflowError):  # raised by the parser for malformed lines
        return None
    running = _values(samples, running_names, settings.labels)
    waiting = _values(samples, waiting_names, settings.labels)
    usage = _values(samples, _USAGE, settings.labels)
    if not running and not waiting and not usage:
        return None
    # Engines behind one address each have a series: their requests add up, and the fullest cache is what stalls.
    requests = sum(running) + sum(waiting)
    return max(0.0, min(1.0, max([requests / (settings.full_at or slots), *usage])))


def _lines_of(text: str, names: Iterable[str]) -> list[str]:
    """Return the lines that hold samples of these series. Takes time linear in the text."""
    wanted = {_plain(name) for name in names}
    found = re.finditer(r"^[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[^\n]*", text, re.MULTILINE)
    return [line[0] for line in found if _plain(line[1]) in wanted]


def _values(samples: Iterable[Sample], names: Iterable[str], labels: dict[str, str]) -> list[float]:
    wanted = {_plain(name) for name in names}
    values = [
        _float(sample.value)
        for sample in samples
        if _plain(sample.name) in wanted and labels.items() <= sample.labels.items()
    ]
    return [value for value in values if math.isfinite(value)]


def _float(value: float) -> float:
    """Convert a sample's value, which the parser returns as an int of any length if it looks like one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plain(name: str) -> str:
    return _PREFIXES.sub("", name.replace(":", "_"))
