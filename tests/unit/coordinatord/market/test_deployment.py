"""Command lines, terms, journals and published sources of a deployment."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common import artifacts
from common.daemon.process import Fatal
from coordinatord.market.commands import market
from coordinatord.market.explorer import standard_input
from coordinatord.market.journal import Attempt, DeploymentEntry, open_journal, replace_file
from coordinatord.market.terms import ModelTerms, read_terms
from tests.support.programs.found import node

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


ADDRESSES = {name: "0x" + f"{n:02x}" * 20 for n, name in enumerate(("token", "owner", "treasury", "relayer"), 0x11)}
VALUES: dict[str, Any] = {
    **{name: ADDRESSES[name] for name in ("token", "owner", "treasury")},
    **{"chain_id": 8453, "decimals": 6, "fee_bps": 250, "gas_fee": 2000, "max_gas_fee": "10000", "point_price": 400},
    **{"slas": [300, 3600], "relayers": [ADDRESSES["relayer"]], "models": [{"id": 1, "name": "a"}]},
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "market.json"
    path.write_text(json.dumps({k: v for k, v in {**VALUES, **changes}.items() if v is not None}))
    return path


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{ "type": "object" }')
    models = [{"id": 1, "name": "a", "params_schema": {"type": "object"}}, {"id": 2, "name": "b", "owned_by": "me"}]
    as_toml = tmp_path / "market.toml"
    plain = "\n".join(f"{key} = {json.dumps(value)}" for key, value in VALUES.items() if key != "models")
    as_toml.write_text(
        f'{plain}\n[[models]]\nid = 1\nname = "a"\nparams_schema_file = "schema.json"\n'
        '[[models]]\nid = 2\nname = "b"\nowned_by = "me"\n'
    )
    terms = read_terms(as_toml, {})
    assert terms == read_terms(written(tmp_path, models=models), {})
    assert terms.models == (ModelTerms(1, "a", "", '{"type":"object"}'), ModelTerms(2, "b", "me"))
    assert (terms.max_gas_fee, terms.token_gas, terms.token_name) == (10000, 200_000, None)


def test_flags_go_before_the_file_and_do_without_it(tmp_path: Path) -> None:
    flags = {"fee_bps": "7", "slas": [60], "models": [{"id": 3, "name": "c"}], "owner": None}
    terms = read_terms(written(tmp_path), flags)
    assert (terms.fee_bps, terms.slas, terms.models) == (7, (60,), (ModelTerms(3, "c"),))
    assert read_terms(None, {**VALUES, **{k: v for k, v in flags.items() if v is not None}}) == terms


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fee_bps": 2001}, r"fee_bps must be in 0\.\.2000"),
        ({"fee_bps": True}, "fee_bps must be an integer"),
        ({"gas_fee": 10001}, "gas_fee must not be above max_gas_fee, 10000"),
        ({"max_gas_fee": str(2**128)}, "max_gas_fee does not fit a uint128"),
        ({"point_price": str(2**96)}, "point_price does not fit a uint96"),
        ({"token_gas": 199_999}, r"token_gas must be in 200000\.\.2000000"),
        ({"slas": [0]}, r"slas\[0\] must be in 1\.\.86400"),
        ({"slas": []}, "slas must be a list with at least one entry"),
        ({"slas": [60, 60]}, "slas must be distinct: 60 appears more than once"),
        ({"relayers": ["0x12"]}, r"relayers\[0\] must be 0x-prefixed hex of 20 bytes"),
        ({"treasury": ADDRESSES["token"]}, "treasury must not be the token"),
        ({"owner": None}, "owner is required: set it in the file, or with --owner"),
        ({"owners": "x"}, "owners is not a key of a market file"),
        ({"chain_id": 0}, "chain_id must be in 1"),
        ({"decimals": 37}, r"decimals must be in 0\.\.36"),
        ({"models": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "their ids must be distinct"),
        ({"models": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, "their names must be distinct"),
        ({"models": [{"id": 2**32, "name": "a"}]}, r"models\[0\]\.id must be in 1\.\.4294967295"),
        ({"models": [{"id": 1, "name": "é" * 129}]}, "must be a text of 1 to 256 bytes"),
        ({"models": [{"id": 1}]}, r"models\[0\]\.name is required"),
        ({"models": [{"id": 1, "name": "a", "nam": ""}]}, r"models\[0\]\.nam is not a key of a model"),
        ({"models": [{"id": 1, "name": "a", "params_schema": [1]}]}, "must be a JSON Schema object"),
        ({"models": [{"id": 1, "name": "a", "params_schema": {"x": "y" * 17000}}]}, "at most 16384 bytes"),
        ({"models": [{"id": 1, "name": "a", "params_schema_file": "gone"}]}, "No such file"),
    ],
)
def test_unacceptable_term_is_refused_by_name(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(Fatal, match=said):
        read_terms(written(tmp_path, **changes), {})


def test_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=r"gone\.toml: No such file"):
        read_terms(tmp_path / "gone.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("= 1")
    with pytest.raises(Fatal, match="must be TOML"):
        read_terms(broken, {})


RUN = {"deployer": "0xaa", "terms": {"slas": (60, 300), "fee_bps": 1}}
ENTRY = DeploymentEntry(
    7, (Attempt("0x01", "0x02", 21000, 5, 1), Attempt("0x03", "0x04", 21000, 9, 2)), "0xcc", 12, "0x03"
)


def test_journal_is_read_back_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with open_journal(path, RUN) as journal:
        assert journal.last_nonce() == -1
        journal.write("deploy", ENTRY)
        journal.write("set", DeploymentEntry(9, ENTRY.attempts))
        journal.write("set", None)
    with open_journal(path, RUN) as journal:
        assert journal.entries == {"deploy": ENTRY}
        assert journal.last_nonce() == 7


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({**RUN, "deployer": "0xbb"}, "whose deployer was 0xaa; now it is 0xbb"),
        ({**RUN, "terms": {"slas": (60,), "fee_bps": 1}}, r"whose slas was \[60, 300\]; now it is \[60\]"),
        ({**RUN, "more": 1}, "whose more was None; now it is 1"),
    ],
)
def test_journal_of_another_deployment_is_refused(tmp_path: Path, run: dict[str, object], said: str) -> None:
    path = tmp_path / "a.journal"
    with open_journal(path, RUN) as journal:
        journal.write("deploy", ENTRY)
    with pytest.raises(Fatal, match=said), open_journal(path, run):
        pass


def test_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with open_journal(path, RUN), pytest.raises(Fatal, match="another run is using"), open_journal(path, RUN):
        pass
    with open_journal(path, RUN):
        pass


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"version": 1, "run": {}, "steps": {"a": {"b": 1}}}'])
def test_file_that_is_no_journal_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.journal"
    path.write_text(text)
    with pytest.raises(Fatal, match="is not a journal of a deployment"), open_journal(path, RUN):
        pass
    assert path.read_text() == text


def test_journal_of_a_later_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(Fatal, match="is a journal of version 2"), open_journal(path, RUN):
        pass


def test_file_that_cannot_be_written_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_text("old")
    (tmp_path / "book.draft").mkdir()
    with pytest.raises(Fatal, match="cannot be written"):
        replace_file(path, "new")
    assert path.read_text() == "old"


CONTRACTS = Path(artifacts.__file__).parent / "contracts"
COMPILE = """
const solc = require("solc");
const input = require("fs").readFileSync(0, "utf8");
console.log(JSON.stringify({ version: solc.version(), output: JSON.parse(solc.compile(input)) }));
"""


@pytest.mark.long
def test_standard_json_compiles_to_the_bytecode_that_is_deployed() -> None:
    # The smallest registry. The others take the same path and more time.
    compiler = node()
    assert compiler is not None, "node is missing: run `make setup`"
    document = json.dumps(standard_input("AskRegistry"))
    done = subprocess.run(
        [compiler, "-e", COMPILE], input=document, text=True, capture_output=True, check=True, cwd=CONTRACTS
    )
    told = json.loads(done.stdout)
    code = told["output"]["contracts"]["src/AskRegistry.sol"]["AskRegistry"]["evm"]["bytecode"]["object"]
    assert bytes.fromhex(code) == artifacts.load_artifact("AskRegistry").bytecode
    assert told["version"].startswith(artifacts.compiler_sources()["compiler"].removeprefix("v"))


def test_each_contract_is_given_with_its_own_sources_alone() -> None:
    for name in ("AskRegistry", "JobRegistry", "ProviderRegistry"):
        sources = standard_input(name)["sources"]
        assert f"src/{name}.sol" in sources
        assert not any(token in path for path in sources for token in ("DevToken", "IssuedToken"))
