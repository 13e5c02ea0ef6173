"""Load of a model's backend, read by a probe, and the discount that an idle backend gives."""

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Final

import attrs
import httpx
import trio
from msgspec import Meta, field
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from svcd.backends.backend import LoadProbe
from svcd.base import metrics
from svcd.base.json_path import SinglePath
from svcd.base.toml import Headers, Texts, TomlTable, Url, read_table
from svcd.payload.gateway import LongAnswer, opened, read_whole

# Settings of a load probe: the `[model.load]` table of the configuration, one struct per kind.

FullAt = Annotated[float, Meta(ge=0.001, le=1e9)]
AnswerSeconds = Annotated[float, Meta(ge=0.01, le=60)]


class PrometheusSettings(TomlTable, frozen=True, kw_only=True, tag="prometheus", tag_field="kind"):
    url: Url
    headers: Headers = Headers()
    full_at: FullAt | None = None  # requests at which the server is full; None: as many as the model has slots
    labels: dict[str, str] = field(default_factory=dict)
    running: Texts = ()
    waiting: Texts = ()
    usage: Texts = ()
    seconds: AnswerSeconds = 2.0


class JsonSettings(TomlTable, frozen=True, kw_only=True, tag="json", tag_field="kind"):
    url: Url
    headers: Headers = Headers()
    path: SinglePath
    full_at: FullAt = 1.0
    seconds: AnswerSeconds = 2.0


class SlotsSettings(TomlTable, frozen=True, kw_only=True, tag="slots", tag_field="kind"):
    """The load of svcd's own slots: no server is asked."""


ProbeSettings = PrometheusSettings | JsonSettings | SlotsSettings


def read_probe(table: Mapping[str, object]) -> ProbeSettings:
    """Raises `Mistake`, whose `param` is the key at fault."""
    return read_table({"kind": "slots", **table}, ProbeSettings)  # type: ignore[arg-type] # a union is a type


# One bounded GET of a load probe.

# The /metrics of a large server has a few hundred KiB.
MAX_ANSWER_BYTES: Final = 2 * 2**20


async def fetch(client: httpx.AsyncClient, url: str, seconds: float) -> bytes | None:
    """Return the body, or None if the answer is late, too long or not a success."""
    with trio.move_on_after(seconds):
        try:
            async with opened(client, "GET", url) as response:
                return await read_whole(response, MAX_ANSWER_BYTES) if response.is_success else None
        except (httpx.RequestError, LongAnswer):
            return None
    return None


# The load as a number at one place of a JSON answer.


@attrs.frozen(slots=True)
class JsonProbe:
    settings: JsonSettings
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        raw = await fetch(self.client, self.settings.url, self.settings.seconds)
        return None if raw is None else load_in_json(raw, self.settings)


def load_in_json(raw: bytes, settings: JsonSettings) -> float | None:
    """None where there is no number."""
    try:
        value = settings.path.first(json.loads(raw))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        load = float(value) / settings.full_at
    except OverflowError:  # an integer of more digits than a float can stand for
        return None
    return max(0.0, min(1.0, load)) if math.isfinite(load) else None


# The load of a model server from the Prometheus text that it serves.
#
#     load = the largest of   (running + waiting) / full_at   and   its cache's use,   at most 1
#
# Servers name these differently, and have renamed them between versions: what is known of them is listed once, and a
# configuration may name others. Names are compared with `:` as `_` and without the prefix that some frames put before
# them.

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
        text = await fetch(self.client, self.settings.url, self.settings.seconds)
        return None if text is None else load_in_exposition(text.decode("utf-8", "replace"), self.settings, self.slots)


def load_in_exposition(text: str, settings: PrometheusSettings, slots: int) -> float | None:
    """Return None if the text has none of the series, or if one of them is malformed or too long."""
    running_names = settings.running or _RUNNING
    waiting_names = settings.waiting or _WAITING
    usage_names = settings.usage or _USAGE
    lines = _lines_of(text, [*running_names, *waiting_names, *usage_names])
    if sum(map(len, lines)) > MAX_PARSED_CHARS or any(len(line) > MAX_LINE_CHARS for line in lines):
        return None
    try:
        families = text_string_to_metric_families("\n".join(lines))
        samples = [sample for family in families for sample in family.samples]
    except (ValueError, KeyError, IndexError, OverflowError):  # raised by the parser for malformed lines
        return None
    running = _values(samples, running_names, settings.labels)
    waiting = _values(samples, waiting_names, settings.labels)
    usage = _values(samples, usage_names, settings.labels)
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


# The load when there is nobody to ask: the part of the own slots that is taken.


@attrs.frozen(slots=True)
class SlotsProbe:
    slots: int
    in_flight: Callable[[], int]

    async def read(self) -> float | None:
        return self.now()

    def now(self) -> float:
        return max(0.0, min(1.0, self.in_flight() / self.slots))


@attrs.frozen(slots=True)
class Load:
    """The load of one model's backend; from the own slots where the probe has no reading."""

    model: str
    probe: LoadProbe
    own: SlotsProbe

    async def read(self) -> float:
        """0 to 1. Counted and shown on /metrics."""
        reading = await self.probe.read()
        if reading is None:
            metrics.load_probe_failures.labels(self.model).inc()
            reading = self.own.now()
        metrics.backend_load.labels(self.model).set(reading)
        return reading


@asynccontextmanager
async def open_load(
    settings: ProbeSettings, *, model: str, slots: int, in_flight: Callable[[], int]
) -> AsyncIterator[Load]:
    """`in_flight` says how many of the model's `slots` are taken now."""
    own = SlotsProbe(slots, in_flight)
    match settings:
        case PrometheusSettings():
            async with _client(settings.headers) as client:
                yield Load(model, PrometheusProbe(settings, slots, client), own)
        case JsonSettings():
            async with _client(settings.headers) as client:
                yield Load(model, JsonProbe(settings, client), own)
        case SlotsSettings():
            yield Load(model, own, own)


def _client(headers: dict[str, str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(headers=headers, trust_env=False)


# Discount under the published ask: idle machines earn nothing, so they take less; busy ones wait.
#
# The discount grows slowly while the load leaves room and is gone at once when there is none. The ask stays what it is:
# only bids that a client chose to make below it are looked at.


@attrs.frozen(slots=True)
class AskRates:
    """Prices per 10^6 units."""

    rate_in: int
    rate_out: int


@attrs.define(slots=True)
class Discount:
    """`most_percent` is the operator's floor (0 takes jobs at configured rates only), reached after `ramp_seconds`
    without load. At a load of `busy_at` and above there is none; in between the most allowed falls in a line."""

    model: str
    most_percent: int = attrs.field(validator=attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(100)))
    ramp_seconds: float = attrs.field(default=600.0, validator=attrs.validators.gt(0))
    busy_at: float = attrs.field(default=0.8, validator=attrs.validators.gt(0))
    _percent: float = 0.0
    _since: float | None = None

    def __attrs_post_init__(self) -> None:
        self._show()

    @property
    def percent(self) -> int:
        """Whole percents, as the metric shows them: what is claimed for is what can be seen."""
        return int(self._percent)

    def observe(self, load: float, now: float) -> None:
        """A reading of the load (0 to 1) at a moment of a clock that does not go back."""
        elapsed = 0.0 if self._since is None else max(0.0, now - self._since)
        self._since = now
        allowed = self.most_percent * max(0.0, 1 - load / self.busy_at)
        grown = self._percent + self.most_percent * elapsed / self.ramp_seconds
        self._percent = min(grown, allowed)
        self._show()

    def floor(self, ask: AskRates) -> AskRates:
        """The lowest rates that the next poll asks for; rounded up, so that never more is given than is shown."""
        return AskRates(self._discounted(ask.rate_in), self._discounted(ask.rate_out))

    def _discounted(self, rate: int) -> int:
        return -(-rate * (100 - self.percent) // 100)

    def _show(self) -> None:
        metrics.bid_floor_discount.labels(self.model).set(self.percent)
