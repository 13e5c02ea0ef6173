import json
import shlex
from pathlib import Path

import pytest

from devnet.client_environment import export_commands
from devnet.errors import DevnetError


def test_exports_are_the_first_client_and_where_it_buys(tmp_path: Path) -> None:
    accounts = [{"role": role, "private_key": f"0x{role}"} for role in ("admin", "client")]
    described = {
        "base_url": "http://a",
        "gateway": "http://b",
        "rpc_url": "http://c d",
        "accounts": accounts,
        "addresses": {"chainId": 5},
    }
    (tmp_path / "devnet.json").write_text(json.dumps(described))
    words = [shlex.split(line) for line in export_commands(tmp_path).splitlines()]
    assert words == [
        ["export", "DEVNET_CHAIN_ID=5"],
        ["export", "SVC_BASE_URL=http://a"],
        ["export", "SVC_PIN_GATEWAY=http://b"],
        ["export", "SVC_RPC_URL=http://c d"],
        ["export", "SVC_WALLET_KEY=0xclient"],
        ["export", f"SVC_ADDRESSES_FILE={tmp_path}/addresses.json"],
        ["export", f"SVC_KNOWN_MARKETS={tmp_path}/known/markets.json"],
    ]


def test_devnet_that_is_not_up_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DevnetError, match="start one with `make devnet`"):
        export_commands(tmp_path)


def test_exports_for_own_wallet_replace_the_first_clients(tmp_path: Path) -> None:
    account = {"role": "client", "private_key": "0x11"}
    described = {"base_url": "http://a", "gateway": "http://b", "rpc_url": "http://c", "accounts": [account]} | {
        "addresses": {"chainId": 5}
    }
    (tmp_path / "devnet.json").write_text(json.dumps(described))
    lines = export_commands(tmp_path, Path("my wallet.key")).splitlines()
    assert lines[0] == "unset SVC_WALLET_KEY"
    assert f"export SVC_WALLET_KEY_FILE='{Path.cwd()}/my wallet.key'" in lines
    assert not any("0x11" in line for line in lines)
