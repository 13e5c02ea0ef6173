"""Discovery for `svcd init`: model servers on this machine, and what the market has for their models."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import httpx
import trio

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.refusal import Refused
from svcd.backends.load import PrometheusSettings, fetch, open_load
from svcd.backends.servers import ServedModels, read_served
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Floors, MarketReads, read_deployment
from svcd.coordinator.requests import Requests

# Where each listens unless it is told otherwise: vLLM, SGLang, llama.cpp, Ollama, LMDeploy.
USUAL_PORTS: Final = (8000, 30000, 8080, 11434, 23333)
_LOOK_SECONDS: Final = 2.0
_MAX_SLOTS: Final = 256
# Servers that batch any number of requests. Others run one at a time unless they are told otherwise.
_BATCHING: Final = frozenset({"vLLM", "SGLang", "LMDeploy"})
_BATCHING_SLOTS: Final = 8
# Windows that a market may well have, where nobody tells which ones it has.
_USUAL_WINDOWS: Final = (3600, 86400)
_SHORTEST: Final = 300  # windows below this leave too little time for a model to be proposed unasked


@attrs.frozen(slots=True)
class ModelServer:
    """`metrics`: the address of its figures, where svcd reads a load from them. `parallel`: the requests that it runs
    at a time, None where it does not tell."""

    url: str
    served: ServedModels
    metrics: str | None
    parallel: int | None = None

    def __str__(self) -> str:
        return f"{self.served.software or 'a server'} at {self.url}: {self.served}"

    @property
    def proposed_slots(self) -> int:
        if self.parallel is not None:
            return self.parallel
        return _BATCHING_SLOTS if self.served.software in _BATCHING else 1


async def local_servers(ports: Iterable[int] = USUAL_PORTS) -> list[ModelServer]:
    return await servers_at(f"http://127.0.0.1:{port}" for port in ports)


async def servers_at(urls: Iterable[str]) -> list[ModelServer]:
    """Those of the addresses at which a list of models is served, in their order."""
    found: dict[str, ModelServer] = {}
    addresses = [url.rstrip("/").removesuffix("/v1") for url in urls]

    async def look(url: str) -> None:
        served = await read_served(http, url, _LOOK_SECONDS)
        if served is not None:
            found[url] = ModelServer(url, served, await _metrics(url), await read_parallel(http, url, served))

    async with httpx.AsyncClient(trust_env=False) as http, trio.open_nursery() as nursery:
        for url in addresses:
            nursery.start_soon(look, url)
    return [found[url] for url in addresses if url in found]


async def _metrics(url: str) -> str | None:
    settings = PrometheusSettings(url=f"{url}/metrics", seconds=_LOOK_SECONDS)  # type: ignore[arg-type] # a Url it is
    async with open_load(settings, model="", slots=1, in_flight=lambda: 0) as load:
        return None if await load.probe.read() is None else str(settings.url)


async def read_parallel(http: httpx.AsyncClient, url: str, served: ServedModels) -> int | None:
    """Return the number of requests that the server runs at a time, as llama.cpp and vLLM tell it."""
    match served.software:
        case "llama.cpp":
            props = await fetch(http, f"{url}/props", _LOOK_SECONDS)
            return None if props is None else _total_slots(props)
        case "vLLM" if served.max_model_len is not None:
            text = await fetch(http, f"{url}/metrics", _LOOK_SECONDS)
            return None if text is None else _whole_requests(text, served.max_model_len)
    return None


def _total_slots(props: bytes) -> int | None:
    try:
        slots = json.loads(props)["total_slots"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return min(slots, _MAX_SLOTS) if type(slots) is int and slots > 0 else None


def _whole_requests(text: bytes, max_model_len: int) -> int | None:
    """Return how many requests of the greatest length vLLM's cache holds."""
    labels = re.search(rb"^vllm:cache_config_info\{([^\n]{1,4096})\}", text, re.MULTILINE)
    if labels is None:
        return None
    sizes = [re.search(rb'\b%s="([0-9]{1,12})"' % name, labels[1]) for name in (b"num_gpu_blocks", b"block_size")]
    if None in sizes:
        return None
    tokens = math.prod(int(size[1]) for size in sizes if size is not None)
    return max(1, min(tokens // max_model_len, _MAX_SLOTS)) if tokens else None


# The market.


@attrs.frozen(slots=True)
class MarketTold:
    """What the coordinator tells. `windows` are those that are worth offering."""

    book: AddressBook
    gateway: str | None
    models: Mapping[str, int]
    windows: tuple[int, ...]
    floors: Floors  # by model id and window


async def read_market(http: httpx.AsyncClient, url: str) -> MarketTold:
    """Fatal where it does not answer, or is no coordinator."""
    requests = Requests(http, url)
    coordinator = MarketReads(requests)
    try:
        book = await read_deployment(requests)
        models, floors = await coordinator.models(), await coordinator.floors()
        allowed = await coordinator.windows()
        gateway = await coordinator.gateway()
    except Unavailable as away:
        raise Fatal(f"{url} does not answer as a coordinator: {away}") from None
    except Refused as wrong:
        raise Fatal(f"{url} is no coordinator: {wrong}") from None
    asked = {window for _, window in floors}
    known = allowed if allowed is not None else asked or frozenset(_USUAL_WINDOWS)
    windows = tuple(sorted(window for window in known if window >= _SHORTEST)) or tuple(sorted(known))
    return MarketTold(book, gateway, models, windows, floors)


def same_model(market: Iterable[str], served: Sequence[str]) -> dict[str, str]:
    """Models of the market that a server has under the same name, or under one that ends alike."""
    found: dict[str, str] = {}
    for name in market:
        exact = [each for each in served if each == name]
        alike = [each for each in served if _bare(each) == _bare(name)]
        if exact or alike:
            found[name] = (exact or alike)[0]
    return found


def _bare(name: str) -> str:
    return name.removesuffix(":latest").rsplit("/", 1)[-1].lower()
