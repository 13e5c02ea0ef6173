"""Prometheus metrics of the daemon."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from svcd.base.end_reasons import CLAIM_HOLD_REASONS, KNOWN_REASONS

disable_created_metrics()  # type: ignore[no-untyped-call] # the created metrics would double the number of series

REGISTRY: Final = CollectorRegistry()

jobs_claimed = Counter("svcd_jobs_claimed_total", "Jobs claimed", registry=REGISTRY)
jobs_settled = Counter("svcd_jobs_settled_total", "Jobs settled", registry=REGISTRY)
jobs_failed = Counter("svcd_jobs_failed_total", "Jobs ended without settle", ["reason"], registry=REGISTRY)
job_duration = Histogram(
    "svcd_job_duration_seconds",
    "Seconds from the start of a run to the confirmed settle",
    buckets=(0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400),
    registry=REGISTRY,
)
backend_latency = Histogram(
    "svcd_backend_latency_seconds",
    "Seconds that a backend needs for a job, including waits and retries",
    ["model"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    registry=REGISTRY,
)
capacity_free = Gauge(
    "svcd_capacity_free", "Configured or granted slots, whichever is lower, minus jobs held", registry=REGISTRY
)
capacity_granted = Gauge("svcd_capacity_granted", "Slots that the registry grants", registry=REGISTRY)
asks_published = Gauge("svcd_asks_published", "Asks of this provider on the book", registry=REGISTRY)
requested_slots = Gauge(
    "svcd_model_free", "Free slots that the last poll of the model reported", ["model"], registry=REGISTRY
)
backend_load = Gauge("svcd_backend_load", "Last load reading, 0 to 1", ["model"], registry=REGISTRY)
bid_floor_discount = Gauge(
    "svcd_bid_floor_discount_pct",
    "Discount on the published ask, in percent; at 0, svcd claims only at configured rates",
    ["model"],
    registry=REGISTRY,
)
load_probe_failures = Counter(
    "svcd_load_probe_failures_total", "Failed readings of a load probe", ["model"], registry=REGISTRY
)
tabs_open = Gauge("svcd_tabs_open", "Open tabs", ["model"], registry=REGISTRY)
tab_requests = Counter(
    "svcd_tab_requests_total",
    "Requests of tabs: answered, failed after they were accepted, or refused",
    ["outcome"],
    registry=REGISTRY,
)
pending_offers = Counter(
    "svcd_pending_offers_total",
    "Jobs offered before their post was mined: taken, or left because they are unwanted or wrongly signed",
    ["outcome"],
    registry=REGISTRY,
)
jobs_ahead = Counter(
    "svcd_jobs_ahead_total",
    "Jobs started before their claim was in a block: begun, then claimed, or unpaid if the claim was refused",
    ["outcome"],
    registry=REGISTRY,
)
unpaid_amount = Counter(
    "svcd_unpaid_amount_total", "Base units lost to jobs that ran ahead and whose claim was refused", registry=REGISTRY
)
claims_withheld = Gauge(
    "svcd_claims_withheld",
    "1 while claims are withheld for this reason, because they would cost reputation",
    ["reason"],
    registry=REGISTRY,
)
backend_retries = Counter("svcd_backend_retries_total", "Backend attempts retried", ["model"], registry=REGISTRY)
task_failures = Counter(
    "svcd_task_failures_total",
    "Unexpected failures of background tasks, each followed by a restart",
    ["task"],
    registry=REGISTRY,
)


def count_task_failures(task: str, number: int) -> None:
    task_failures.labels(task).inc(number)


def create_series_at_zero(models: Iterable[str]) -> None:
    """Create every series at 0.

    Prometheus sees no increase in a counter that first appears at 1, so an alert would miss the first failure.
    """
    for reason in KNOWN_REASONS:
        jobs_failed.labels(reason)
    for reason in CLAIM_HOLD_REASONS:
        claims_withheld.labels(reason)
    for outcome in ("begun", "claimed", "unpaid"):
        jobs_ahead.labels(outcome)
    for outcome in ("taken", "left"):
        pending_offers.labels(outcome)
    for outcome in ("answered", "failed", "refused"):
        tab_requests.labels(outcome)
    for model in models:
        for metric in (backend_latency, requested_slots, backend_load, bid_floor_discount, tabs_open):
            metric.labels(model)
        for counter in (load_probe_failures, backend_retries):
            counter.labels(model)
