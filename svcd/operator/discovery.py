"""Find model servers for `svcd init`."""

import json
import math
import re
from collections.abc import Iterable
from typing import Final

import attrs
import httpx
import trio

from svcd.backends.load import open_load
from svcd.backends.load_request import fetch_body
from svcd.backends.load_settings import PrometheusSettings
from svcd.backends.servers import ServedModels, read_served_models

# Default ports of vLLM, SGLang, llama.cpp, Ollama and LMDeploy.
DEFAULT_PORTS: Final = (8000, 30000, 8080, 11434, 23333)
_PROBE_TIMEOUT_S: Final = 2.0
_MAX_SLOTS: Final = 256
# Servers that run any number of requests at once. Other servers run one request at a time by default.
_BATCHING_SOFTWARE: Final = frozenset({"vLLM", "SGLang", "LMDeploy"})
_DEFAULT_BATCHING_SLOTS: Final = 8


@attrs.frozen(slots=True)
class ModelServer:
    """Model server found at a URL.

    `metrics_url` is the URL of the server's Prometheus metrics. `parallel_requests` is the number of requests that the
    server runs at once, or None if unknown.
    """

    url: str
    served: ServedModels
    metrics_url: str | None
    parallel_requests: int | None = None

    def __str__(self) -> str:
        return f"{self.served.software or 'a server'} at {self.url}: {self.served}"

    @property
    def proposed_slots(self) -> int:
        if self.parallel_requests is not None:
            return self.parallel_requests
        return _DEFAULT_BATCHING_SLOTS if self.served.software in _BATCHING_SOFTWARE else 1


async def find_local_servers(ports: Iterable[int] = DEFAULT_PORTS) -> list[ModelServer]:
    return await find_servers(f"http://127.0.0.1:{port}" for port in ports)


async def find_servers(urls: Iterable[str]) -> list[ModelServer]:
    """Return a server for each URL that lists models, in the order of `urls`."""
    found: dict[str, ModelServer] = {}
    addresses = [url.rstrip("/").removesuffix("/v1") for url in urls]

    async def probe_url(url: str) -> None:
        served = await read_served_models(http, url, _PROBE_TIMEOUT_S)
        if served is not None:
            found[url] = ModelServer(
                url, served, await _find_metrics_url(url), await read_parallel_requests(http, url, served)
            )

    async with httpx.AsyncClient(trust_env=False) as http, trio.open_nursery() as nursery:
        for url in addresses:
            nursery.start_soon(probe_url, url)
    return [found[url] for url in addresses if url in found]


async def _find_metrics_url(url: str) -> str | None:
    settings = PrometheusSettings(url=f"{url}/metrics", timeout_s=_PROBE_TIMEOUT_S)
    async with open_load(settings, model="", slots=1, in_flight=lambda: 0) as load:
        return None if await load.probe.read() is None else settings.url


async def read_parallel_requests(http: httpx.AsyncClient, url: str, served: ServedModels) -> int | None:
    """Return the number of concurrent requests that llama.cpp or vLLM reports, or None if it is unknown."""
    match served.software:
        case "llama.cpp":
            props = await fetch_body(http, f"{url}/props", _PROBE_TIMEOUT_S)
            return None if props is None else _read_total_slots(props)
        case "vLLM" if served.max_model_len is not None:
            text = await fetch_body(http, f"{url}/metrics", _PROBE_TIMEOUT_S)
            return None if text is None else _count_full_length_requests(text, served.max_model_len)
    return None


def _read_total_slots(props: bytes) -> int | None:
    try:
        slots = json.loads(props)["total_slots"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return min(slots, _MAX_SLOTS) if type(slots) is int and slots > 0 else None


def _count_full_length_requests(text: bytes, max_model_len: int) -> int | None:
    """Return how many requests of `max_model_len` tokens fit into vLLM's cache together."""
    labels = re.search(rb"^vllm:cache_config_info\{([^\n]{1,4096})\}", text, re.MULTILINE)
    if labels is None:
        return None
    sizes = [re.search(rb'\b%s="([0-9]{1,12})"' % name, labels[1]) for name in (b"num_gpu_blocks", b"block_size")]
    if None in sizes:
        return None
    tokens = math.prod(int(size[1]) for size in sizes if size is not None)
    return max(1, min(tokens // max_model_len, _MAX_SLOTS)) if tokens else None
