"""Readiness, and the last hour of metrics that the operators' page draws."""

import json

import pytest

from coordinatord.api.system.readiness import ReadinessReport, judge_readiness
from coordinatord.base import metrics
from coordinatord.chain.indexer.position_sql import IndexPosition
from coordinatord.run.operators_port import MetricsHistory


def at(block: int, *, rebuilding: bool = False) -> IndexPosition:
    return IndexPosition(block, b"\1" * 32, 1_700_000_000, rebuilding)


@pytest.mark.parametrize(
    ("position", "head", "report"),
    [
        (at(100), 107, ReadinessReport(True, "ready", 100, 107, 7)),
        (at(100), 108, ReadinessReport(False, "trailing", 100, 108, 8)),
        (at(100), 98, ReadinessReport(True, "ready", 100, 98, -2)),
        (at(100), 92, ReadinessReport(False, "trailing", 100, 92, -8)),
        (None, 5, ReadinessReport(False, "cold_start", None, 5, None)),
        (at(100, rebuilding=True), 100, ReadinessReport(False, "reorg", 100, 100, 0)),
        (at(100), None, ReadinessReport(False, "chain_unreachable", None, None, None)),
        (None, None, ReadinessReport(False, "chain_unreachable", None, None, None)),
    ],
)
def test_report_names_the_reason(position: IndexPosition | None, head: int | None, report: ReadinessReport) -> None:
    assert judge_readiness(position, head, 7) == report


def test_emptied_index_is_at_no_negative_block() -> None:
    assert judge_readiness(at(-1, rebuilding=True), 5, 7).cursor == 0


def test_history_has_the_last_hour_and_sums_over_labels() -> None:
    now = [1_800_000_000.0]
    history = MetricsHistory(lambda: now[0])
    for priority, depth in (("exit", 2), ("post", 5)):
        metrics.relay_queue_depth.labels(priority).set(depth)
    metrics.index_lag.set(3)
    for _ in range(1000):
        history.record_sample()
        now[0] += 15
    samples = json.loads(history.as_json())["samples"]
    assert samples[-1]["at"] - samples[0]["at"] == 3600 - 15
    assert (samples[-1]["queue"], samples[-1]["lag"]) == (7, 3)


def test_absent_series_is_unknown() -> None:
    metrics.relay_gas_price.clear()
    history = MetricsHistory()
    history.record_sample()
    assert json.loads(history.as_json())["samples"][0]["gas_price"] is None
