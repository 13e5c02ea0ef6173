"""The load of a model server from the Prometheus text that it serves.

    load = the largest of   (running + waiting) / full_at   and   its cache's use,   at most 1

Servers name these differently, and have renamed them between versions: what is known of them is listed once, and a
configuration may name others. Names are compared with `:` as `_` and without the prefix that some frames put before
them.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from svcd.probes.fetching import fetch
from svcd.probes.settings import PrometheusSettings

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


@attrs.frozen(slots=True)
class PrometheusProbe:
    settings: PrometheusSettings
    slots: int
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        text = await fetch(self.client, self.settings.url, self.settings.seconds)
        return None if text is None else load_in(text.decode("utf-8", "replace"), self.settings, self.slots)


def load_in(text: str, settings: PrometheusSettings, slots: int) -> float | None:
    """None where the text is malformed or holds none of the series."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError):  # what the parser raises for lines that it cannot read
        return None
    running = _values(samples, settings.running or _RUNNING, settings.labels)
    waiting = _values(samples, settings.waiting or _WAITING, settings.labels)
    usage = _values(samples, settings.usage or _USAGE, settings.labels)
    if not running and not waiting and not usage:
        return None
    # Engines behind one address each have a series: their requests add up, and the fullest cache is what stalls.
    requests = sum(running) + sum(waiting)
    return max(0.0, min(1.0, max([requests / (settings.full_at or slots), *usage])))


def _values(samples: Iterable[Sample], names: tuple[str, ...], labels: dict[str, str]) -> list[float]:
    wanted = {_plain(name) for name in names}
    return [
        float(sample.value)
        for sample in samples
        if _plain(sample.name) in wanted and labels.items() <= sample.labels.items() and math.isfinite(sample.value)
    ]


def _plain(name: str) -> str:
    return _PREFIXES.sub("", name.replace(":", "_"))
