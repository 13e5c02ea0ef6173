"""The last hour of metrics that the operators' page draws."""

import json

from coordinatord.base import metrics
from coordinatord.run.operators_port import MetricsHistory


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
