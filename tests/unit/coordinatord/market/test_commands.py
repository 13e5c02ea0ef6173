"""Command lines that are rejected before any request to the node."""

import subprocess
import sys
from pathlib import Path

import pytest

from coordinatord.market.commands import market

NODE = ("--rpc-url", "http://127.0.0.1:9")
TERMS = (
    *("--token", "0x" + "11" * 20, "--owner", "0x" + "22" * 20, "--treasury", "0x" + "33" * 20, "--chain-id", "1"),
    *("--decimals", "6", "--fee-bps", "1", "--gas-fee", "1", "--max-gas-fee", "1", "--point-price", "1"),
    *("--sla", "60", "--relayer", "0x" + "44" * 20, "--model", "1=a"),
)
DEPLOY = ("deploy", *NODE, *TERMS)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPC_URL", "ADDRESSES_FILE", "MARKET_KEYSTORE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status"], "--rpc-url, or the variable RPC_URL, must name"),
        (["status", *NODE], "--addresses, or the variable ADDRESSES_FILE, must name"),
        (["status", *NODE, "--addresses", "/no/such"], "/no/such: No such file"),
        (["deploy", *NODE], "chain_id is required: set it in the file, or with --chain-id"),
        ([*DEPLOY], "--out must name the file"),
        ([*DEPLOY, "--dry-run"], "--dry-run needs --from"),
        ([*DEPLOY, "--out", "a"], "one of --keystore, --key-file and --signer must name"),
        ([*DEPLOY, "--out", "a", "--signer", "true"], "--signer needs --from"),
        ([*DEPLOY, "--out", "a", "--keystore", "/no/such"], "--keystore /no/such cannot be read: No such file"),
    ],
)
def test_failing_command_exits_with_1_and_the_reason(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        market(words, prog_name="coordinatord market")
    assert ended.value.code == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: coordinatord market"),
        ([*DEPLOY, "--max-fee", "-1"], "must be an amount of gwei"),
        ([*DEPLOY, "--max-fee", "0.0000000001"], "must be an amount of gwei"),
        ([*DEPLOY, "--model", "one"], "must be ID=NAME"),
        ([*DEPLOY, "--confirmations", "0"], "0 is not in the range 1<=x<=1000000"),
        ([*DEPLOY, "--poll", "nan"], "must be in 0.01..60"),
        ([*DEPLOY, "--from", "0x12"], "must be 0x-prefixed hex of 20 bytes"),
        ([*DEPLOY, "--key-file", "a", "--signer", "b"], "--key-file and --signer cannot be used together"),
        (["admin", "--calldata"], "No such option"),
    ],
)
def test_command_line_that_makes_no_sense_ends_with_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        market(words, prog_name="coordinatord market")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_key_of_another_account_than_named_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text("01" * 32)
    with pytest.raises(SystemExit):
        market([*DEPLOY, "--out", str(tmp_path / "a"), "--key-file", str(path), "--from", "0x" + "55" * 20])
    assert "but the key belongs to 0x1a642f0E3c3aF545E7AcBD38b07251B3990914F1" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["web3", "eth_account", "eth_abi", "requests"])
def test_missing_package_names_the_extra_market(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['coordinatord', 'market', '--help']\n"
        "from coordinatord.__main__ import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"coordinatord market: the Python package {missing}")
    assert ran.stderr.endswith("it comes with the extra 'market': pip install 'sealed-job-coordinator[market]'\n")
