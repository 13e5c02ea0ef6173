from pathlib import Path

import pytest

from common.daemon.process import Fatal
from coordinatord.run.config import read_config
from tests.unit.coordinatord.environment import ENVIRONMENT

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
