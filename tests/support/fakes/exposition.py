"""The output of /metrics once every series exists."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from coordinatord.base.metrics import REGISTRY as COORDINATORD
from svcd.base.metrics import REGISTRY as SVCD

REGISTRIES = {"coordinatord": COORDINATORD, "svcd": SVCD}


def exposition(daemon: str) -> bytes:
    return generate_latest(_touched(REGISTRIES[daemon]))


def series_names(daemon: str) -> set[str]:
    families = text_string_to_metric_families(exposition(daemon).decode())
    return {sample.name for family in families for sample in family.samples}


def _touched(registry: CollectorRegistry) -> CollectorRegistry:
    """Return a copy in which each label combination was used once. An unused labelled metric prints no series."""
    touched = CollectorRegistry()
    for metric in _metrics(registry):
        bounds = {"buckets": metric._upper_bounds} if isinstance(metric, Histogram) else {}
        copy = type(metric)(metric._name, metric._documentation, metric._labelnames, registry=touched, **bounds)
        if metric._labelnames:
            copy.labels(*["x"] * len(metric._labelnames))
    return touched


def _metrics(registry: CollectorRegistry) -> Iterator[MetricWrapperBase]:
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            yield collector
