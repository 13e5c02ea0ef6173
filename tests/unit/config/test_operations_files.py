"""Alerts and dashboards follow the metrics that the daemons serve, and every alert is explained."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.exposition import exposition, series_names

ROOT = Path(__file__).parents[3]
DAEMONS = ["coordinatord", "svcd"]
ALERT_PAGES = {"coordinatord": "docs/operators/alerts.md", "svcd": "docs/providers/reference.md"}

each_daemon = pytest.mark.parametrize("daemon", DAEMONS)


def expressions_of(daemon: str) -> Iterator[str]:
    board: dict[str, Any] = json.loads(dashboard(daemon))
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (variable["definition"] for variable in board["templating"]["list"] if "definition" in variable)


def series_in(text: str, daemon: str) -> set[str]:
    return set(re.findall(rf"\b{daemon}_[a-z0-9_]+", text))


def rules(daemon: str) -> str:
    return (ROOT / f"config/prometheus/{daemon}.rules.yml").read_text()


def dashboard(daemon: str) -> str:
    return (ROOT / f"config/grafana/{daemon}.json").read_text()


def alerts(daemon: str) -> list[str]:
    return re.findall(r"- alert: (\w+)", rules(daemon))


@each_daemon
def test_dashboard_queries_use_served_series(daemon: str) -> None:
    for expression in expressions_of(daemon):
        named = series_in(expression, daemon)
        assert named or expression.startswith("label_values(up{")
        assert named <= series_names(daemon), expression


@each_daemon
def test_the_dashboard_shows_every_metric_of_the_daemon(daemon: str) -> None:
    shown = series_in(dashboard(daemon), daemon)
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in series_names(daemon)}
    of_counters = {name.removesuffix("_total") for name in families if name.endswith("_total")}
    assert {re.sub(r"_(bucket|count)$", "", name) for name in shown} == families - of_counters


@each_daemon
def test_every_alert_rule_names_series_that_are_served(daemon: str) -> None:
    assert series_in(rules(daemon), daemon) <= series_names(daemon)


def test_every_bucket_that_a_rule_or_query_names_is_one() -> None:
    selected = [
        (daemon, name, bound)
        for daemon in DAEMONS
        for text in (rules(daemon), *expressions_of(daemon))
        for name, bound in re.findall(r'(\w+_bucket)\{[^}]*le="([^"]+)"', text)
    ]
    assert selected
    for daemon, name, bound in selected:
        served = rf'^{name}\{{.*le="{re.escape(bound)}"'
        assert re.search(served, exposition(daemon).decode(), re.MULTILINE), (name, bound)


@each_daemon
def test_every_alert_is_tested_firing_and_silent(daemon: str) -> None:
    text = (ROOT / f"config/prometheus/tests/{daemon}.test.yml").read_text()
    for alert in alerts(daemon):
        assert re.search(rf"alertname: {alert}, exp_alerts: \[\]", text), alert
        assert re.search(rf"alertname: {alert}\n +exp_alerts:\n +- exp_labels", text), alert


@each_daemon
def test_alerts_and_paragraphs_match(daemon: str) -> None:
    page = (ROOT / ALERT_PAGES[daemon]).read_text()
    explained = re.findall(r"^\*\*(\w+)\*\* +\S.{80,}?(?=\n\n|\Z)", page, re.MULTILINE | re.DOTALL)
    assert explained == alerts(daemon)
