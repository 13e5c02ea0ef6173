"""Run promtool on the daemons' metrics and on the configuration files for operators."""

import json
import re
from pathlib import Path

import pytest

from tests.integration.promtool import PROMTOOL, promtool
from tests.support.fakes.exposition import exposition

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; `make programs` fetches it")


@pytest.mark.parametrize("daemon", ["coordinatord", "svcd"])
def test_the_metrics_are_well_named_and_documented(daemon: str) -> None:
    assert promtool("check", "metrics", stdin=exposition(daemon)) == ""


def test_a_metric_that_is_not_well_named_would_be_complained_of() -> None:
    assert "svcd_jobs" in promtool("check", "metrics", stdin=b"# TYPE svcd_jobs counter\nsvcd_jobs 1\n")


def test_the_scrape_configuration_is_valid_with_its_rules() -> None:
    assert promtool("check", "config", ROOT / "config/prometheus/prometheus.yml") == ""


@pytest.mark.parametrize("daemon", ["coordinatord", "svcd"])
def test_the_alerts_fire_and_stay_silent_as_their_tests_say(daemon: str) -> None:
    assert promtool("test", "rules", ROOT / f"config/prometheus/tests/{daemon}.test.yml") == ""


@pytest.mark.parametrize("daemon", ["coordinatord", "svcd"])
def test_every_query_of_the_dashboard_is_one(daemon: str, tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / f"config/grafana/{daemon}.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert queries
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval", "5m", query)}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is valid YAML
    assert promtool("check", "rules", file) == ""
