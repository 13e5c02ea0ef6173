"""The source published to explorers compiles to the deployed code, with the compiler version that it names."""

import json
import subprocess
from pathlib import Path

import pytest

from common import artifacts
from coordinatord.market.explorer import standard_input
from tests.support.programs.found import node

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
