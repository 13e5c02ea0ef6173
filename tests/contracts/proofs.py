"""The symbolic proofs of the contracts, as a table: `python -m tests.contracts prove`.

`planted` runs the proofs on a copy of the sources with a fault in every function that they cover, and each proof must
fail. This shows that no proof is vacuous.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CONTRACTS: Final = ROOT / "common" / "contracts"
BUILD: Final = ROOT / "build"
ENVIRONMENT: Final = ROOT / ".venv-halmos" / "bin"
SOURCES: Final = CONTRACTS / "symbolic"
# Exit codes of halmos.
ENDINGS: Final = {0: "proved", 1: "counterexample", 2: "timeout", 3: "stuck", 4: "reverts always", 5: "error"}

# One fault in each function that a proof covers, all in one copy. A proof with two parts needs a fault in only one.
FAULTS: Final = (
    ("JobRegistry", "_pay(jobId, operator, cost);", "_pay(jobId, operator, cost + 1);"),
    (
        "JobRegistry",
        "emit JobFailed(jobId, word.provider());\n        _pay(jobId, posted.owner, amount);",
        "emit JobFailed(jobId, word.provider());\n        _pay(jobId, operator, amount);",
    ),
    (
        "JobRegistry",
        "emit JobReclaimed(jobId, word.provider());\n        _pay(jobId, posted.owner, amount);",
        "emit JobReclaimed(jobId, word.provider());\n        _pay(jobId, msg.sender, amount);",
    ),
    (
        "JobRegistry",
        "if (!word.isClaimed()) revert NotClaimed();\n        if (!word.isOn(_termsHash(posted))) revert UnknownJob();",
        "",
    ),
    ("JobRegistry", "if (!word.isOpen()) return NotOpen.selector;", ""),
    ("JobRegistry", "if (_jobs[jobId].exists()) revert DuplicateJob();\n        Fees", "Fees"),
    ("JobRegistry", "if (_jobs[jobId].exists()) revert DuplicateJob();\n        _jobs", "_jobs"),
    ("JobRegistry", "if (word.isClaimed()) revert NotCancellable();", ""),
    (
        "JobRegistry",
        "if (!word.isOpen()) return;\n        if (!word.isOn(_termsHash(posted))) revert UnknownJob();",
        "",
    ),
    ("Escrow", "_totalCredits -= uint128(amount);", "_totalCredits -= uint128(amount - 1);"),
    ("Escrow", "_escrowed = held + uint128(amount);", "_escrowed = held + uint128(amount - 1);"),
    ("Escrow", "tokenGas = gasOfOneCall;", "tokenGas = gasOfOneCall;\n        _totalCredits = 0;"),
    (
        "ProviderRegistry",
        "uint256 gain = owner == operator ? 0 : _gain(treasuryShare);",
        "uint256 gain = _gain(treasuryShare);",
    ),
    ("ProviderRegistry", "_lowered(record.reputation, loss)", "record.reputation - loss * POINT"),
    # Authorisation: an empty signature makes anyone the operator, and a signature never expires.
    ("Relayed", "if (signature.length == 0) return msg.sender;", "if (signature.length == 0) return address(0x0B0B);"),
    (
        "JobRegistry",
        "if (signer == address(0)) revert InvalidSignature();\n"
        "        if (sig.length != 0) _requireInWindow(issuedAt);",
        "if (signer == address(0)) revert InvalidSignature();",
    ),
    ("JobRegistry", "_requireSentFor(owner);", ""),
    ("JobRegistry", "if (signer == address(0) || signer != posted.owner || !word.exists())", "if (!word.exists())"),
    ("ProviderRegistry", "if (issuedAt <= last || issuedAt > block.timestamp + MOST_AHEAD) revert StaleOp();", ""),
    (
        "ProviderRegistry",
        "function jobReclaimed(uint32 providerId) external {\n        _requireJobRegistry();",
        "function jobReclaimed(uint32 providerId) external {",
    ),
    (
        "ProviderRegistry",
        "(uint96 newPointPrice) external onlyOwner",
        "(uint96 newPointPrice) external",
    ),
    (
        "Catalogue",
        "(uint32 slaSecs, bool allowed) external onlyOwner",
        "(uint32 slaSecs, bool allowed) external",
    ),
    # Terms and windows.
    (
        "JobRegistry",
        "if (!word.isOn(_termsHash(posted))) return UnknownJob.selector;\n"
        "        return block.timestamp > posted.order.expiresAt ? NotOpen.selector : bytes4(0);",
        "return bytes4(0);",
    ),
    ("JobRegistry", "if (block.timestamp > _deadline(word, posted)) revert SlaExpired();", ""),
    ("JobRegistry", "if (block.timestamp <= _deadline(word, posted)) revert SlaNotExpired();", ""),
    ("JobRegistry", "FAILURE_WINDOW = 300", "FAILURE_WINDOW = 301"),
    ("ProviderRegistry", "_records[providerId].listed = listed;", "delete _records[providerId];"),
)


def copy_with_faults() -> Path:
    """Copy the contracts, with the faults."""
    folder = BUILD / "planted"
    shutil.rmtree(folder / "src", ignore_errors=True)
    for name in ("src", "symbolic"):
        shutil.copytree(CONTRACTS / name, folder / name, dirs_exist_ok=True)
    for name in ("foundry.toml", "halmos.toml", "package.json", "solc-shim"):
        shutil.copy(CONTRACTS / name, folder / name)
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(CONTRACTS / "node_modules")
    for file, before, after in FAULTS:
        path = folder / "src" / f"{file}.sol"
        text = path.read_text()
        if text.count(before) != 1:
            sys.exit(f"{file}.sol has {text.count(before)} times, not once: {before}\nadapt FAULTS in {__file__}")
        path.write_text(text.replace(before, after))
    return folder


def outcomes(folder: Path, match: str, *, first: bool) -> list[dict[str, Any]]:
    """Return how each proof ended. `first`: stop at the first counterexample."""
    name = "planted" if first else "proofs"
    answer = BUILD / f"{name}.json"
    answer.unlink(missing_ok=True)
    command = [
        *(str(ENVIRONMENT / "halmos"), "--root", str(folder), "--config", str(folder / "halmos.toml")),
        *("--match-test", match, "--json-output", str(answer), *(["--early-exit"] if first else [])),
        *("--solver-command", f"{ENVIRONMENT / 'python'} {Path(__file__).with_name('solve.py')}"),
    ]
    [forge] = CONTRACTS.glob("node_modules/@foundry-rs/forge-*/bin")
    path = os.pathsep.join((str(forge), os.environ["PATH"]))
    environment = {
        **os.environ,
        "PATH": path,
        "HOME": str(BUILD / "foundry"),
        "FOUNDRY_PROFILE": "symbolic",
    }
    with (BUILD / f"{name}.log").open("w") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    if not answer.exists():
        sys.exit(f"halmos came to no end: see {log.name}")
    results = json.loads(answer.read_text())["test_results"]
    return [test for tests in results.values() for test in tests]


def hold(match: str, *, planted: bool = False) -> bool:
    """Run the matching proofs and print a table. With `planted`, each must find a counterexample."""
    wanted = "counterexample" if planted else "proved"
    tests = outcomes(copy_with_faults() if planted else CONTRACTS, match, first=planted)
    good = 0
    for test in tests:
        ending = ENDINGS.get(test["exitcode"], "error")
        good += ending == wanted
        title = test["name"].removeprefix("check_").removesuffix("()").replace("_", " ")
        mark = " " if ending == wanted else "!"
        print(f"{mark} {ending:<15} {test['time'][0]:>6.1f} s {test['num_paths'][0]:>4} paths  {title}")
    expected = sum(source.read_text().count("function check_") for source in SOURCES.glob("*.t.sol"))
    print(f"{good} of {len(tests)} as they should be: {wanted}", flush=True)
    return good == len(tests) and (bool(match) or len(tests) == expected)
