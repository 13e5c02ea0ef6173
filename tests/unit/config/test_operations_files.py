"""Alerts and dashboards follow the metrics of the daemons. The proxy's settings match the server's limits."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.settings.reader import settings_of
from coordinatord.run.config import Config
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


CONF = Path(__file__).parents[3] / "config" / "nginx" / "coordinatord.conf"
TOKEN = re.compile(r"#[^\n]*|\"[^\"]*\"|[{};]|[^\s{};\"#]+")
Block = dict[str, list[object]]


def parse(tokens: Iterator[str], *, inner: bool) -> Block:
    """Return the directives by name, each with its arguments as text or its block."""
    block: Block = {}
    words: list[str] = []
    for token in tokens:
        if token.startswith("#"):
            continue
        if token == ";":
            assert words, "a semicolon that ends nothing"
            block.setdefault(words[0], []).append(" ".join(words[1:]))
            words = []
        elif token == "{":
            assert words, "a block without a name"
            block.setdefault(" ".join(words), []).append(parse(tokens, inner=True))
            words = []
        elif token == "}":
            assert inner, "a brace that closes nothing"
            assert not words, f"{words} is not ended by a semicolon"
            return block
        else:
            words.append(token)
    assert not inner, "a block is not closed"
    assert not words, f"{words} is not ended by a semicolon"
    return block


def served() -> Block:
    """Return the server block that passes requests to the coordinator."""
    servers = parse(iter(TOKEN.findall(CONF.read_text(encoding="utf-8"))), inner=False)["server"]
    (found,) = [server for server in servers if isinstance(server, dict) and "location /" in server]
    return found


def size(text: object) -> int:
    number, unit = re.fullmatch(r"(\d+)([km])", str(text)).groups()  # type: ignore[union-attr] # a mismatch fails the test
    return int(number) << {"k": 10, "m": 20}[unit]


def seconds(text: object) -> int:
    return int(str(text).removesuffix("s"))


def default(variable: str) -> int:
    (value,) = [each.default for each in settings_of(Config) if each.name.upper() == variable]
    assert isinstance(value, int)
    return value


def test_largest_body_of_json_and_of_a_file_pass_the_proxy() -> None:
    server = served()
    (files,) = server["location = /v1/files"]
    assert isinstance(files, dict)
    assert size(server["client_max_body_size"][0]) > 20 << 20
    assert size(files["client_max_body_size"][0]) > default("MAX_BLOB_BYTES")
    assert files["proxy_request_buffering"] == ["off"]


def test_proxy_waits_longer_than_a_relay_may_take() -> None:
    assert seconds(served()["proxy_read_timeout"][0]) > 60 + default("RELAY_QUEUE_TIMEOUT_MS") / 1000


def test_upstream_is_the_default_port() -> None:
    (upstream,) = parse(iter(TOKEN.findall(CONF.read_text(encoding="utf-8"))), inner=False)["upstream coordinatord"]
    assert isinstance(upstream, dict)
    assert upstream["server"] == [f"127.0.0.1:{default('PORT')}"]


def test_no_upgrade_and_no_rewritten_path_is_passed_on() -> None:
    server = served()
    assert {'Upgrade ""', 'Connection ""'} <= set(server["proxy_set_header"])
    assert server["merge_slashes"] == ["off"]
    for location in (server["location /"][0], server["location = /v1/files"][0]):
        assert isinstance(location, dict)
        # with a path, nginx would decode and encode the URL again
        assert location["proxy_pass"] == ["http://coordinatord"]
