"""`svc config`: settings of a profile, and what the environment hides of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from svc.cli.exit_codes import Exit
from tests.unit.svc.cli.market import Svc

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, svc: Svc) -> None:
    """The environment of `svc` names a wallet key."""
    monkeypatch.delenv("SVC_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SVC_RPC_URL", raising=False)


def shown(svc: Svc, capsys: Said) -> dict[str, Any]:
    capsys.readouterr()
    assert svc("config show --json") == Exit.DONE
    return dict(json.loads(capsys.readouterr().out))


def test_value_hidden_by_its_variable_is_shown(svc: Svc, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVC_RPC_URL", "http://other")
    assert svc("config set rpc_url http://node") == Exit.DONE
    assert "SVC_RPC_URL in the environment overrides it" in capsys.readouterr().err
    source = "the environment (SVC_RPC_URL); overrides http://node of profile default"
    assert shown(svc, capsys)["rpc_url"] == {"value": "http://other", "source": source}


def test_wallet_hidden_by_another_way_is_not_called_unset(svc: Svc, capsys: Said) -> None:
    assert svc("config set keystore /home/me/wallet.json") == Exit.DONE
    assert "SVC_WALLET_KEY in the environment overrides it" in capsys.readouterr().err
    source = "/home/me/wallet.json of profile default is overridden by the environment (SVC_WALLET_KEY)"
    assert shown(svc, capsys)["keystore"] == {"value": None, "source": source}


def test_value_that_nothing_hides_is_set_without_a_warning(svc: Svc, capsys: Said) -> None:
    assert svc("config set rpc_url http://node") == Exit.DONE
    assert "warning" not in capsys.readouterr().err
    assert shown(svc, capsys)["rpc_url"] == {"value": "http://node", "source": "profile default"}
