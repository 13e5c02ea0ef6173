"""The specification's table of variables, compared with the settings that are read."""

from pathlib import Path

import pytest

from common.daemon.process import Fatal
from coordinatord.chain.relayer.fees import fee_ceiling_for_chain
from coordinatord.run.config import read_config, variable_names
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
