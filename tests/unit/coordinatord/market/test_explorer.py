"""What explorers are given compiles to what was deployed, by the compiler that it names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common import artifacts
from coordinatord.market.explorer import standard_input

CONTRACTS = Path(artifacts.__file__).parent / "contracts"
COMPILE = """
const solc = require("solc");
const input = require("fs").readFileSync(0, "utf8");
console.log(JSON.stringify({ version: solc.version(), output: JSON.parse(solc.compile(input)) }));
"""


@pytest.mark.long
def test_standard_json_compiles_to_the_bytecode_that_is_deployed() -> None:
    # The smallest of the registries: the way is the same for each, and the others take their time.
    node = shutil.which("node", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert node is not None, "node is missing: run `make setup`"
    document = json.dumps(standard_input("AskRegistry"))
    done = subprocess.run(
        [node, "-e", COMPILE], input=document, text=True, capture_output=True, check=True, cwd=CONTRACTS
    )
    told = json.loads(done.stdout)
    code = told["output"]["contracts"]["src/AskRegistry.sol"]["AskRegistry"]["evm"]["bytecode"]["object"]
    assert bytes.fromhex(code) == artifacts.load("AskRegistry").bytecode
    assert told["version"].startswith(artifacts.sources()["compiler"].removeprefix("v"))


def test_each_contract_is_given_with_its_own_sources_alone() -> None:
    for name in ("AskRegistry", "JobRegistry", "ProviderRegistry"):
        sources = standard_input(name)["sources"]
        assert f"src/{name}.sol" in sources
        assert not any(token in path for path in sources for token in ("DevToken", "IssuedToken"))
