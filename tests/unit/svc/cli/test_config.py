"""`svc config`: settings of a profile, and which of them the environment overrides."""

import json
from pathlib import Path
from typing import Any

import pytest

from svc.cli.exit_codes import ExitCode
from tests.unit.svc.cli.market import Svc

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, svc: Svc) -> None:
    """A profile, with a wallet key in the environment."""
    monkeypatch.delenv("SVC_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SVC_RPC_URL", raising=False)


def shown(svc: Svc, capsys: Said) -> tuple[dict[str, Any], str]:
    """Return the rows by variable, and the warnings."""
    capsys.readouterr()
    assert svc("config show --json") == ExitCode.DONE
    said = capsys.readouterr()
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(said.out)}, said.err


def test_value_hidden_by_its_variable_is_reported(svc: Svc, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVC_RPC_URL", "http://other")
    assert svc("config set rpc_url http://node") == ExitCode.DONE
    assert "SVC_RPC_URL in the environment overrides this value" in capsys.readouterr().err
    rows, warnings = shown(svc, capsys)
    assert rows["SVC_RPC_URL"] == ("http://other", "environment")
    assert "SVC_RPC_URL overrides rpc_url of profile default" in warnings


def test_wallet_hidden_by_another_way_is_reported(svc: Svc, capsys: Said) -> None:
    assert svc("config set wallet_key_file /home/me/wallet.json") == ExitCode.DONE
    assert "SVC_WALLET_KEY in the environment overrides this value" in capsys.readouterr().err
    rows, warnings = shown(svc, capsys)
    assert rows["SVC_WALLET_KEY_FILE"] == (None, None)
    assert rows["SVC_WALLET_KEY"] == ("<SECRET>", "environment")
    assert "SVC_WALLET_KEY overrides wallet_key_file of profile default" in warnings


def test_value_that_nothing_hides_is_set_without_a_warning(svc: Svc, capsys: Said) -> None:
    assert svc("config set rpc_url http://node") == ExitCode.DONE
    assert "warning" not in capsys.readouterr().err
    rows, warnings = shown(svc, capsys)
    assert (rows["SVC_RPC_URL"], warnings) == (("http://node", "profile default"), "")


def test_misspelt_variable_is_reported_with_the_nearest_one(
    svc: Svc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SVC_MAX_AMOUT", "1")
    monkeypatch.setenv("SVC_OF_ANOTHER_PROGRAM", "1")
    svc("models")
    said = capsys.readouterr().err
    assert "SVC_MAX_AMOUT is not a setting (did you mean SVC_MAX_AMOUNT?)" in said
    assert "SVC_OF_ANOTHER_PROGRAM" not in said
