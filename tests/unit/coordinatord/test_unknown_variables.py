"""Variables that look like settings but are not."""

import pytest
import structlog

from coordinatord.base.metrics import REGISTRY
from coordinatord.run.checks.examine import find_settings_faults
from coordinatord.run.commands import record_build
from coordinatord.run.config import unknown_settings
from tests.unit.coordinatord.environment import ENVIRONMENT


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("RELAY_MAX_DEPHT", "RELAY_MAX_DEPTH"),
        ("RELAYR_KEY", "RELAYER_KEY"),
        ("PINSTORE_BUCKET", "PIN_STORE_BUCKET"),
        ("ADDRESS_FILE", "ADDRESSES_FILE"),
        ("RELAY_SOMETHING_ELSE_ALTOGETHER", None),
    ],
)
def test_mistyped_variable_suggests_the_nearest_name(name: str, near: str | None) -> None:
    assert unknown_settings({**ENVIRONMENT, name: "1"}) == {name: near}


@pytest.mark.parametrize(
    "name",
    [
        *["PATH", "HOME", "LOGNAME", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "REQUESTS_CA_BUNDLE"],
        *["SENTRY_TRACES_SAMPLE_RATE", "http_proxy"],
    ],
)
def test_variables_of_shells_and_systemd_are_ignored(name: str) -> None:
    assert unknown_settings({**ENVIRONMENT, name: "1"}) == {}


def test_empty_variable_counts_as_unset() -> None:
    assert unknown_settings({**ENVIRONMENT, "RELAY_MAX_DEPHT": ""}) == {}


def test_start_warns_of_each() -> None:
    with structlog.testing.capture_logs() as lines:
        record_build("1.2.3", {"RELAY_MAX_DEPHT": "RELAY_MAX_DEPTH", "RELAY_X": None})
    assert [(line["event"], line["name"], line["nearest"]) for line in lines] == [
        ("unknown variable", "RELAY_MAX_DEPHT", "RELAY_MAX_DEPTH"),
        ("unknown variable", "RELAY_X", None),
    ]
    assert REGISTRY.get_sample_value("coordinatord_build_info", {"version": "1.2.3"}) == 1


def test_all_faults_are_named_once() -> None:
    assert find_settings_faults(ENVIRONMENT) == []
    faults = find_settings_faults({**ENVIRONMENT, "PORT": "0", "LOG_LEVEL": "loud", "ADDRESSES_JSON": ""})
    assert [fault.split()[0] for fault in faults] == ["PORT", "LOG_LEVEL"]


def test_together_rules_are_looked_at_once_each_setting_is_right() -> None:
    assert find_settings_faults({**ENVIRONMENT, "ADDRESSES_JSON": ""}) == [
        "exactly one of ADDRESSES_FILE and ADDRESSES_JSON must be set"
    ]
    [fault] = find_settings_faults({**ENVIRONMENT, "PIN_STORE_KEY": ""})
    assert fault == "PIN_STORE_KEY is required with PIN_STORE=filebase"
    assert find_settings_faults({**ENVIRONMENT, "PIN_STORE": "kubo", "PIN_STORE_KEY": "", "PIN_STORE_BUCKET": ""}) == []
