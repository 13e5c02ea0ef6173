"""Settings: the specification's table of variables, the command that prints them, and the example file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from common.daemon.process import Fatal
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.fees import fee_ceiling_for_chain
from coordinatord.run import commands
from coordinatord.run.checks.examine import find_settings_faults
from coordinatord.run.cli import coordinatord
from coordinatord.run.commands import record_build
from coordinatord.run.config import read_config, setting_rows, unknown_settings, variable_names
from coordinatord.run.constructors import relayer_settings
from tests.unit.coordinatord.environment import ENVIRONMENT

INTEGERS = {  # minimum, default, maximum
    "PORT": (1, 8402, 65535),
    "GETLOGS_CAP": (1, 5000, 1_000_000),
    "BLOCK_TIME_MS": (1, 2000, 3_600_000),
    "READY_LAG_BLOCKS": (0, 7, 1_000_000),
    "RELAY_MAX_DEPTH": (1, 32, 4096),
    "RELAY_QUEUE_TIMEOUT_MS": (1, 10_000, 600_000),
    "MAX_BLOB_BYTES": (1024, 209_715_200, 1_073_741_824),
    "FILE_RETENTION_SECONDS": (259_200, 2_592_000, 31_536_000),
    "MATCH_LEASE_MS": (1000, 20_000, 600_000),
    "MATCH_LIVENESS_MS": (1000, 15_000, 600_000),
    "MATCH_CANDIDATES": (1, 3, 100),
    "RELEASE_ORDINAL": (0, 1, 65535),
    "ESCROW_ROTATE_INTERVAL_MS": (3_600_000, 86_400_000, 604_800_000),
    "ESCROW_SWEEP_INTERVAL_MS": (1000, 300_000, 3_600_000),
    "PEER_SYNC_S": (5, 300, 86_400),
    "ESCROW_CLOCK_OFFSET_MS": (0, 0, 31_536_000_000),
}
REQUIRED = sorted(ENVIRONMENT.keys() - {"ADDRESSES_JSON"})


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_outside_its_range_stops_the_boot(name: str) -> None:
    lowest, default, highest = INTEGERS[name]
    field = name.lower()
    assert getattr(read_config(ENVIRONMENT), field) == default
    for value in (lowest, highest):
        assert getattr(read_config({**ENVIRONMENT, name: str(value)}), field) == value
    for wrong in (str(lowest - 1), str(highest + 1), f"{default}.0", f"0{default}", f"+{default}", f" {default}", "٨"):
        with pytest.raises(Fatal, match=rf"^{name} "):
            read_config({**ENVIRONMENT, name: wrong})


def test_empty_value_counts_as_unset() -> None:
    empty = dict.fromkeys(variable_names(), "")
    assert read_config({**empty, **ENVIRONMENT}) == read_config(ENVIRONMENT)


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_required_variable_stops_the_boot(name: str) -> None:
    for without in ({n: v for n, v in ENVIRONMENT.items() if n != name}, {**ENVIRONMENT, name: ""}):
        with pytest.raises(Fatal, match=rf"^{name} "):
            read_config(without)


def test_address_book_comes_from_one_place(tmp_path: Path) -> None:
    inline = ENVIRONMENT["ADDRESSES_JSON"]
    (tmp_path / "book.json").write_text(inline)
    by_file = {**ENVIRONMENT, "ADDRESSES_JSON": "", "ADDRESSES_FILE": str(tmp_path / "book.json")}
    assert read_config(by_file).addresses == read_config(ENVIRONMENT).addresses
    for wrong in ({**by_file, "ADDRESSES_JSON": inline}, {**by_file, "ADDRESSES_FILE": ""}):
        with pytest.raises(Fatal, match="exactly one of ADDRESSES_FILE and ADDRESSES_JSON"):
            read_config(wrong)


@pytest.mark.parametrize(
    "origins",
    ["*", "https://*.example", "https://a.example/", "https://a.example/x", "a.example", "https://a.example,"],
)
def test_inexact_origin_stops_the_boot(origins: str) -> None:
    with pytest.raises(Fatal, match=r"^CORS_ORIGINS "):
        read_config({**ENVIRONMENT, "CORS_ORIGINS": origins})


def test_exact_origins_are_taken() -> None:
    config = read_config({**ENVIRONMENT, "CORS_ORIGINS": "https://a.example, http://localhost:3000"})
    assert config.cors_origins == ("https://a.example", "http://localhost:3000")


@pytest.mark.parametrize("proxies", ["10.0.0.0/8", "proxy.example", "10.0.0.1,"])
def test_proxy_setting_that_hides_all_callers_stops_the_boot(proxies: str) -> None:
    with pytest.raises(Fatal, match=r"^TRUSTED_PROXIES "):
        read_config({**ENVIRONMENT, "TRUSTED_PROXIES": proxies})


def test_metrics_on_the_port_of_the_service_stop_the_boot() -> None:
    with pytest.raises(Fatal, match=r"^METRICS_PORT "):
        read_config({**ENVIRONMENT, "PORT": "9402"})


def test_secrets_can_be_credentials_and_have_no_repr(tmp_path: Path) -> None:
    secrets = ("DATABASE_URL", "RELAYER_KEY", "PIN_STORE_KEY", "PIN_STORE_SECRET")
    for name in secrets:
        (tmp_path / name.lower()).write_text(ENVIRONMENT[name] + "\n")
    rest = {name: value for name, value in ENVIRONMENT.items() if name not in secrets}
    config = read_config({**rest, "CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert config == read_config(ENVIRONMENT)
    (tmp_path / "rpc_url").write_text("https://node.example/v2/abcdef\n")
    hosted = read_config({**rest, "CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert hosted.rpc_url == "https://node.example/v2/abcdef"
    assert "abcdef" not in repr(hosted)
    assert not any(repr(ENVIRONMENT[name]) in repr(config) or "01" * 32 in repr(config) for name in secrets)


def test_binary_credential_stops_the_boot_unseen(tmp_path: Path) -> None:
    (tmp_path / "relayer_key").write_bytes(b"\x96" * 32)  # raw key bytes instead of hex digits
    with pytest.raises(Fatal, match="relayer_key"):
        read_config({**ENVIRONMENT, "RELAYER_KEY": "", "CREDENTIALS_DIRECTORY": str(tmp_path)})


def test_operators_fee_ceiling_overrides_the_chains() -> None:
    assert relayer_settings(read_config(ENVIRONMENT)).fee_ceiling == fee_ceiling_for_chain(31337, None, None)
    named = read_config({**ENVIRONMENT, "RELAY_MAX_FEE_GWEI": "30", "RELAY_MAX_TIP_GWEI": "2"})
    assert relayer_settings(named).fee_ceiling == fee_ceiling_for_chain(31337, 30, 2)


def test_further_nodes_follow_the_first_without_duplicates() -> None:
    urls = "https://a.example/v3/key, http://b.example:8545"
    nodes = read_config(ENVIRONMENT | {"RPC_URL": "http://c.example", "RPC_URLS": urls}).node_urls
    assert nodes == ["http://c.example", "https://a.example/v3/key", "http://b.example:8545"]
    assert read_config(ENVIRONMENT).node_urls == ["http://localhost:8545"]
    for twice in ({"RPC_URLS": "http://localhost:8545"}, {"RPC_URLS": "http://a.example,http://a.example/"}):
        with pytest.raises(Fatal, match=r"^RPC_URLS must name each node once"):
            read_config(ENVIRONMENT | twice)
    with pytest.raises(Fatal, match=r"^RPC_URLS must be a list, each an http"):
        read_config(ENVIRONMENT | {"RPC_URLS": "http://a.example,b.example"})


def test_relayer_account_has_exactly_one_signer() -> None:
    without = {name: value for name, value in ENVIRONMENT.items() if name != "RELAYER_KEY"}
    address = "0x" + "ab" * 20
    keystore = {"RELAYER_KEYSTORE": "/k", "RELAYER_KEYSTORE_PASSWORD": "p"}
    for setting in (
        keystore,
        {"RELAYER_SIGNER_URL": "http://s", "RELAYER_ACCOUNT": address},
    ):
        assert read_config(without | setting).relayer_key is None
        with pytest.raises(Fatal, match=r"^RELAYER_KEY and RELAYER_\w+ must not both be set"):
            read_config(ENVIRONMENT | setting)
    for wrong in (
        {"RELAYER_SIGNER_COMMAND": "sign"},
        keystore | {"RELAYER_ACCOUNT": address},
    ):
        with pytest.raises(Fatal, match=r"^RELAYER_ACCOUNT must be set with RELAYER_SIGNER_URL"):
            read_config(without | wrong)
    with pytest.raises(Fatal, match=r"^RELAYER_ACCOUNT must be an address with a correct checksum"):
        read_config(without | {"RELAYER_SIGNER_COMMAND": "sign", "RELAYER_ACCOUNT": "0x" + "aB" * 20})
    with pytest.raises(Fatal, match=r"^RELAYER_ACCOUNT must be an address: 0x"):
        read_config(without | {"RELAYER_SIGNER_COMMAND": "sign", "RELAYER_ACCOUNT": "me"})


KEYS = "0a" * 32, "0b" * 32


def test_operator_keys_may_come_from_a_systemd_credential(tmp_path: Path) -> None:
    (tmp_path / "operator_key").write_text(f"0x{KEYS[0]},\n {KEYS[1]}\n")
    config = read_config({**ENVIRONMENT, "ESCROW_MODE": "static", "CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert [key.reveal() for key in config.operator_keys] == list(KEYS)


def test_operator_keys_show_in_no_repr() -> None:
    config = read_config({**ENVIRONMENT, "ESCROW_MODE": "static", "OPERATOR_KEY": ",".join(KEYS)})
    assert not any(key in repr(config) for key in KEYS)


@pytest.mark.parametrize("mode", ["static", "mock"])
def test_hosting_an_escrow_without_operator_keys_stops_the_boot(mode: str) -> None:
    with pytest.raises(Fatal, match="OPERATOR_KEY is required"):
        read_config({**ENVIRONMENT, "ESCROW_MODE": mode})


@pytest.mark.parametrize(
    "setting",
    [
        ("ESCROW_ROTATE_INTERVAL_MS", "3600000"),
        ("ESCROW_SWEEP_INTERVAL_MS", "1000"),
        ("PEER_URL", "http://peer"),
        ("PEER_REQUIRED", "0"),
        ("PEER_SYNC_S", "5"),
        ("ESCROW_CLOCK_OFFSET_MS", "0"),
    ],
)
def test_static_escrow_with_mock_settings_stops_the_boot(setting: tuple[str, str]) -> None:
    static = {**ENVIRONMENT, "ESCROW_MODE": "static", "OPERATOR_KEY": KEYS[0]}
    with pytest.raises(Fatal, match=setting[0]):
        read_config({**static, setting[0]: setting[1]})
    read_config({**static, setting[0]: ""})


@pytest.mark.parametrize("key", ["0a" * 31, "0a" * 32 + ",", "0g" * 32, "00" * 32, "ff" * 32])
def test_invalid_operator_key_stops_the_boot_unseen(key: str) -> None:
    with pytest.raises(Fatal, match="OPERATOR_KEY") as stopped:
        read_config({**ENVIRONMENT, "ESCROW_MODE": "static", "OPERATOR_KEY": key})
    assert key[:8] not in str(stopped.value)


def test_required_first_pull_without_a_peer_stops_the_boot() -> None:
    mock = {**ENVIRONMENT, "ESCROW_MODE": "mock", "OPERATOR_KEY": KEYS[0]}
    with pytest.raises(Fatal, match="PEER_REQUIRED"):
        read_config({**mock, "PEER_REQUIRED": "1"})


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


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in variable_names():
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_settings_are_printed_with_value_and_source(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("PORT", "8500")
    assert commands.print_settings(as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == variable_names()
    (place,) = [n for n, line in enumerate(lines) if line.startswith("PORT ")]
    assert lines[place].split(maxsplit=1)[1] == "8500 (environment)"
    assert lines[place + 1] == "    HTTP port; binds 0.0.0.0 unless BIND_HOST is set; 1..65535; default 8402"


@pytest.mark.parametrize("as_json", [False, True])
def test_settings_show_no_secret(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    secrets = {"DATABASE_URL": "postgresql://hidden", "RELAYER_KEY": "0x" + "5e" * 32, "RPC_URL": "http://a/hidden"}
    for name, value in secrets.items():
        environment.setenv(name, value)
    assert commands.print_settings(as_json) == 0
    printed = capsys.readouterr().out
    assert printed.count("<SECRET>") >= len(secrets)
    assert [name for name, value in secrets.items() if value in printed] == []


def test_invalid_setting_is_shown_and_fails(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("PORT", "0")
    assert commands.print_settings(as_json=True) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["PORT"]["problem"] == "must be an integer in 1..65535, not '0'"
    assert {name for name, row in rows.items() if row["problem"]} == {"PORT"}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_stops_reading_is_no_error(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "coordinatord", "settings"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_there_are_at_most_64_settings() -> None:
    assert len(variable_names()) <= 64


def test_help_fits_two_screens() -> None:
    assert len(CliRunner().invoke(coordinatord, ["--help"]).output.splitlines()) <= 48


_EXAMPLE = Path(__file__).parents[3] / "config" / "coordinatord.env.example"


def _listed() -> dict[str, tuple[str, str]]:
    """Return by name: the comment above the variable, and its value."""
    found = re.findall(r"^# (.+)\n#?([A-Z][A-Z0-9_]*)=(.*)$", _EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (about, value) for about, name, value in found}


def test_example_lists_every_setting() -> None:
    listed = re.findall(r"^#?([A-Z][A-Z0-9_]*)=", _EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(variable_names())


def test_example_has_the_meaning_and_default_of_every_setting() -> None:
    listed = _listed()
    for row in setting_rows({}):
        about, value = listed[row.name]
        assert about == row.meaning
        assert value == (row.default or "") or row.name == "ADDRESSES_FILE"
