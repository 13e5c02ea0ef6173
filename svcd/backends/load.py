"""Read the load of a model's backend from a probe, or from the slots in use."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import httpx

from svcd.backends.backend import LoadProbe
from svcd.backends.json_load import JsonProbe
from svcd.backends.load_settings import JsonSettings, ProbeSettings, PrometheusSettings, SlotsSettings
from svcd.backends.prometheus_load import PrometheusProbe
from svcd.base import metrics


@attrs.frozen(slots=True)
class SlotsProbe:
    slots: int
    count_in_flight: Callable[[], int]

    async def read(self) -> float | None:
        return self.busy_share()

    def busy_share(self) -> float:
        return max(0.0, min(1.0, self.count_in_flight() / self.slots))


@attrs.define(slots=True, eq=False)
class Load:
    """Load of one model's backend. If the probe has no reading, the load is the share of busy slots."""

    model: str
    probe: LoadProbe
    slots_probe: SlotsProbe
    latest_reading: float | None = None

    async def read(self) -> float:
        """Return the load from 0 to 1, and update the metrics."""
        reading = await self.probe.read()
        if reading is None:
            metrics.load_probe_failures.labels(self.model).inc()
            reading = self.slots_probe.busy_share()
        metrics.backend_load.labels(self.model).set(reading)
        self.latest_reading = reading
        return reading


@asynccontextmanager
async def open_load(
    settings: ProbeSettings, *, model: str, slots: int, in_flight: Callable[[], int]
) -> AsyncIterator[Load]:
    """Open the configured probe. `in_flight` returns the number of the model's `slots` in use."""
    slots_probe = SlotsProbe(slots, in_flight)
    match settings:
        case PrometheusSettings():
            async with _build_client() as client:
                yield Load(model, PrometheusProbe(settings, slots, client), slots_probe)
        case JsonSettings():
            async with _build_client() as client:
                yield Load(model, JsonProbe(settings, client), slots_probe)
        case SlotsSettings():
            yield Load(model, slots_probe, slots_probe)


def _build_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False)
