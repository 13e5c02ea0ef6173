"""`svcd status`: show the metrics of the running daemon and the jobs in its journal."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from common.checks import CheckRow, fact, right_or_wrong, unknown, wrong
from common.response_checks import IDENTITY_HEADERS
from svc.wire.answers import require_unencoded
from svcd.config import MetricsTable
from svcd.journal.entries import read_job_counts
from svcd.journal.journal import JOURNAL_FILE
from svcd.stages.health import REASON_HEADER

_REQUEST_TIMEOUT_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 8 << 20
_SHOWN_METRICS: Final = {
    "svcd_jobs_claimed_total": "claimed since start",
    "svcd_jobs_settled_total": "settled since start",
    "svcd_capacity_granted": "slots granted",
    "svcd_capacity_free": "slots free",
    "svcd_asks_published": "asks on the book",
    "svcd_tabs_open": "tabs open",
    "svcd_model_free": "free at the last poll",
    "svcd_backend_load": "load",
    "svcd_bid_floor_discount_pct": "discount, percent",
}


def check_status(state_directory: Path, metrics: MetricsTable) -> list[CheckRow]:
    return [*_check_daemon(metrics), *_check_journal(state_directory)]


def _check_daemon(metrics: MetricsTable) -> list[CheckRow]:
    if not metrics.port:
        return [unknown("daemon", "metrics are disabled, so the daemon's state is unknown", "set port under [metrics]")]
    host = f"[{metrics.host}]" if ":" in metrics.host else metrics.host
    base = f"http://{host}:{metrics.port}"
    try:
        with httpx.Client(base_url=base, timeout=_REQUEST_TIMEOUT_S, trust_env=False) as http:
            (health, body), (_, text) = _fetch_text(http, "/healthz"), _fetch_text(http, "/metrics")
    except httpx.HTTPError as failure:
        return [wrong("daemon", f"does not answer on {base} ({type(failure).__name__})", "start it, or read its log")]
    reason = health.headers.get(REASON_HEADER)
    summary = body.strip() if reason is None else f"{body.strip()}: {reason}"
    findings = [right_or_wrong("daemon", health.status_code == httpx.codes.OK, summary)]
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "svcd_jobs_failed_total" and sample.value:
                findings.append(fact(f"failed since start: {sample.labels['reason']}", f"{sample.value:g}"))
            elif sample.name in _SHOWN_METRICS:
                labels = " ".join(sample.labels.values())
                findings.append(fact(f"{_SHOWN_METRICS[sample.name]} {labels}".rstrip(), f"{sample.value:g}"))
    return findings


def _fetch_text(http: httpx.Client, path: str) -> tuple[httpx.Response, str]:
    """Return the response and its text. Limit the text's size, because another program may listen on the port."""
    with http.stream("GET", path, headers=dict(IDENTITY_HEADERS)) as response:
        require_unencoded(response)
        body = b""
        for piece in response.iter_raw():
            body += piece
            if len(body) > _MAX_ANSWER_BYTES:
                raise httpx.DecodingError(
                    f"the answer has more than {_MAX_ANSWER_BYTES} bytes", request=response.request
                )
        return response, body.decode("utf-8", "replace")


def _check_journal(state_directory: Path) -> list[CheckRow]:
    path = state_directory / JOURNAL_FILE
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            counts = read_job_counts(connection)
    except sqlite3.OperationalError as absent:
        return [unknown("journal", f"{path}: {absent}")]
    except sqlite3.DatabaseError as broken:
        return [wrong("journal", f"{path}: {broken}")]
    return [
        fact(f"journal: {state}{f' ({reason})' if reason else ''}", str(count))
        for (state, reason), count in counts.items()
    ] or [fact("journal", "no jobs yet")]
