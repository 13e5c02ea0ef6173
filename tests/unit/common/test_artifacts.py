import json
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from eth_utils.abi import abi_to_signature, event_abi_to_log_topic, function_abi_to_4byte_selector
from eth_utils.crypto import keccak

from common import artifacts
from tests.support.programs.found import node

CONTRACTS_DIR = Path(artifacts.__file__).parent / "contracts"


def test_artifacts_match_the_sources_in_the_tree() -> None:
    """Quick check for sources that changed after compiling. `make test-long` runs the compiler itself."""
    for path, source in artifacts.compiler_sources()["sources"].items():
        folder = CONTRACTS_DIR / "node_modules" if path.startswith("@") else CONTRACTS_DIR
        assert (folder / path).read_text(encoding="utf-8") == source, f"{path}: run `make contracts`"
    profile = tomllib.loads((CONTRACTS_DIR / "foundry.toml").read_text(encoding="utf-8"))["profile"]["default"]
    settings = artifacts.compiler_sources()["settings"]
    assert (profile["optimizer_runs"], profile["via_ir"], profile["evm_version"]) == (
        settings["optimizer"]["runs"],
        settings["viaIR"],
        settings["evmVersion"],
    )
    locked = json.loads((CONTRACTS_DIR / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert artifacts.compiler_sources()["compiler"].startswith(f"v{locked['node_modules/solc']['version']}+")


@pytest.mark.long
@pytest.mark.timeout(600)  # compiling takes half a minute, longer on a busy machine
def test_committed_artifacts_match_the_compiler(tmp_path: Path) -> None:
    compiler = node()
    assert compiler is not None, "node is missing: run `make setup`"
    subprocess.run([compiler, CONTRACTS_DIR / "build.mjs", tmp_path], check=True)
    paths = {f"artifacts/{path.name}" for path in (CONTRACTS_DIR / "artifacts").iterdir()} | {"sources.json"}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == paths
    assert paths >= {f"artifacts/{name}.json" for name in artifacts.CONTRACTS}
    for path in sorted(paths):
        rebuilt, committed = (tmp_path / path).read_bytes(), (CONTRACTS_DIR / path).read_bytes()
        assert rebuilt == committed, f"{path} differs from its sources: run `make contracts`"


@pytest.mark.parametrize("name", artifacts.CONTRACTS)
def test_topics_selectors_and_errors_match_an_oracle(name: str) -> None:
    artifact = artifacts.load_artifact(name)
    checked = 0
    times = Counter(entry["name"] for entry in artifact.abi if entry["type"] == "function")
    for entry in cast("tuple[Any, ...]", artifact.abi):  # the oracle's types differ by kind of entry
        match entry["type"]:
            case "event":
                assert artifacts.event_topic(artifact, entry["name"]) == event_abi_to_log_topic(entry)
            case "function" if times[entry["name"]] > 1:
                with pytest.raises(ValueError, match="several functions"):
                    artifacts.selector(artifact, entry["name"])
            case "function":
                assert artifacts.selector(artifact, entry["name"]) == function_abi_to_4byte_selector(entry)
            case "error":
                assert artifact.errors[keccak(text=abi_to_signature(entry))[:4]] == entry["name"]
            case _:
                continue  # the constructor has no name
        checked += 1
    assert checked > (1 if name == "IssuedTokenProxy" else 20)
    assert len(artifact.errors) == sum(entry["type"] == "error" for entry in artifact.abi)


def test_bytecode_fits_the_chains_limit_on_deployed_code() -> None:
    for name in artifacts.CONTRACTS:
        assert 0 < len(artifacts.load_artifact(name).bytecode) <= 2 * 24_576


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError):
        artifacts.load_artifact("../JobRegistry")
    with pytest.raises(KeyError, match="JobRegistry has no event Posted"):
        artifacts.event_topic(artifacts.load_artifact("JobRegistry"), "Posted")
    with pytest.raises(KeyError, match="JobRegistry has no function JobPosted"):
        artifacts.selector(artifacts.load_artifact("JobRegistry"), "JobPosted")


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("DuplicateJob()", "DuplicateJob"),
        ("StaleSnapshot()", "StaleSnapshot"),
        ("JobsActive()", "JobsActive"),
        ("EnforcedPause()", "EnforcedPause"),
        ("OwnableUnauthorizedAccount(address)", "OwnableUnauthorizedAccount"),
        ("AccountBlacklisted(address)", "AccountBlacklisted"),
        ("Panic(uint256)", "Panic"),
        ("Error(string)", "Error"),
    ],
)
def test_revert_data_is_named_by_its_first_four_bytes(signature: str, name: str) -> None:
    assert artifacts.decode_error_name(keccak(text=signature)[:4] + bytes(32)) == name


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xde\xad\xbe\xef"])
def test_revert_data_of_no_known_error_has_no_name(data: bytes) -> None:
    assert artifacts.decode_error_name(data) is None
