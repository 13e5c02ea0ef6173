import re
from pathlib import Path

import attrs
import httpx
import trio
from prometheus_client import generate_latest

from common.daemon.operators_port import bind_operators_port
from svcd.base.end_reasons import CLAIM_HOLD_REASONS, KNOWN_REASONS
from svcd.base.metrics import REGISTRY, count_task_failures, create_series_at_zero
from svcd.stages.health import DaemonHealth, serve_metrics

_PACKAGE = Path(__file__).parents[3] / "svcd"


SPECIFIED = {
    "svcd_jobs_claimed": ("counter", ()),
    "svcd_jobs_settled": ("counter", ()),
    "svcd_jobs_failed": ("counter", ("reason",)),
    "svcd_job_duration_seconds": ("histogram", ()),
    "svcd_backend_latency_seconds": ("histogram", ("model",)),
    "svcd_capacity_free": ("gauge", ()),
    "svcd_capacity_granted": ("gauge", ()),
    "svcd_asks_published": ("gauge", ()),
    "svcd_model_free": ("gauge", ("model",)),
    "svcd_backend_load": ("gauge", ("model",)),
    "svcd_bid_floor_discount_pct": ("gauge", ("model",)),
    "svcd_load_probe_failures": ("counter", ("model",)),
    "svcd_backend_retries": ("counter", ("model",)),
}
ADDED = {
    "svcd_claims_withheld": ("gauge", ("reason",)),
    "svcd_jobs_ahead": ("counter", ("outcome",)),
    "svcd_pending_offers": ("counter", ("outcome",)),
    "svcd_unpaid_amount": ("counter", ()),
    "svcd_task_failures": ("counter", ("task",)),
    "svcd_tabs_open": ("gauge", ("model",)),
    "svcd_tab_requests": ("counter", ("outcome",)),
}


def test_metrics_have_the_specified_types_and_labels() -> None:
    create_series_at_zero(["m"])
    count_task_failures("guard", 0)
    served = {
        family.name: (family.type, tuple(label for label in family.samples[0].labels if label != "le"))
        for family in REGISTRY.collect()
    }
    assert served == SPECIFIED | ADDED


def test_every_series_exists_before_any_event() -> None:
    create_series_at_zero(["m/never-run"])
    text = generate_latest(REGISTRY).decode()
    for name in ("model_free", "backend_load", "bid_floor_discount_pct", "load_probe_failures_total"):
        assert f'\nsvcd_{name}{{model="m/never-run"}} 0.0\n' in text
    assert '\nsvcd_backend_retries_total{model="m/never-run"} 0.0\n' in text
    assert '\nsvcd_backend_latency_seconds_count{model="m/never-run"} 0.0\n' in text
    for reason in KNOWN_REASONS:
        assert f'\nsvcd_jobs_failed_total{{reason="{reason}"}} ' in text
    for reason in CLAIM_HOLD_REASONS:
        assert f'\nsvcd_claims_withheld{{reason="{reason}"}} ' in text
    for name in ("jobs_claimed_total", "jobs_settled_total", "job_duration_seconds_count"):
        assert re.search(rf"^svcd_{name} ", text, re.MULTILINE)
    for name in ("capacity_free", "capacity_granted", "asks_published"):
        assert re.search(rf"^svcd_{name} ", text, re.MULTILINE)


def test_no_stage_gives_a_reason_that_is_not_known() -> None:
    sources = "".join(path.read_text() for path in _PACKAGE.rglob("*.py"))
    given = set(re.findall(r'WorkFailed\(\s*"([a-z0-9_A-Z]+)"', sources))
    assert len(given) > 15
    assert given <= set(KNOWN_REASONS)


def test_every_known_reason_is_explained_to_the_operator() -> None:
    reference = (_PACKAGE.parent / "docs/providers/reference.md").read_text()
    patterns = {"settle_http_": "settle_http_<status>", "session_http_": "session_http_<status>"}
    for reason in KNOWN_REASONS:
        shown = next((pattern for start, pattern in patterns.items() if reason.startswith(start)), reason)
        if re.match("settle_[A-Z]", reason):
            shown = "settle_<contract error>"
        assert f"`{shown}`" in reference, reason


@attrs.define
class Journal:
    is_working: bool = True


async def test_health_follows_the_journal_and_series_exist() -> None:
    journal = Journal()
    health = DaemonHealth(journal)  # type: ignore[arg-type]
    with bind_operators_port("127.0.0.1", 0, "PORT") as bound:
        async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False) as http:
            nursery.start_soon(serve_metrics, health, bound)
            base = f"http://127.0.0.1:{bound.getsockname()[1]}"
            assert (await http.get(f"{base}/healthz")).status_code == 503  # not ready yet
            health.expect_polls("m", 2.0)
            healthy = await http.get(f"{base}/healthz")
            assert (healthy.status_code, healthy.text) == (200, "ok\n")
            journal.is_working = False
            unhealthy = await http.get(f"{base}/healthz")
            assert (unhealthy.status_code, unhealthy.text) == (503, "unhealthy\n")
            assert unhealthy.headers["x-svcd-reason"] == "the journal cannot be read or written"
            metrics = await http.get(f"{base}/metrics")
            assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
            for name in (
                "svcd_jobs_claimed_total 0.0",
                "svcd_jobs_settled_total 0.0",
                "svcd_capacity_granted",
                "svcd_asks",
            ):
                assert name.partition(" ")[0] in metrics.text
            assert (await http.get(f"{base}/other")).status_code == 404
            assert (await http.post(f"{base}/metrics")).status_code == 405
            nursery.cancel_scope.cancel()
