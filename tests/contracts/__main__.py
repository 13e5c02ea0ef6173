"""Check the contracts.

    python -m tests.contracts test         unit, fuzz and invariant tests, and the gas of each operation (a minute)
    python -m tests.contracts deep         the same tests with 10,000 fuzz runs and longer invariant runs
    python -m tests.contracts snapshot     renew the committed gas of each operation
    python -m tests.contracts prices       proofs of the arithmetic of prices, over the integers
    python -m tests.contracts prove        symbolic proofs of the money: a table (ten minutes); --match REGEX chooses
    python -m tests.contracts planted      run these proofs on planted faults, which each must find
    python -m tests.contracts slither      static analysis: no unexplained finding of high or medium

Several names run one after another. The output of a failed step is printed in full, otherwise its last line. In rare
runs, z3 does not return from one question, and a proof takes longer than ten minutes: kill halmos, and repeat with
--match from this proof on.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.contracts import proofs
from tests.support.requirements import CONTRACTS as PACKAGES
from tests.support.requirements import ROOT, require

CONTRACTS: Final = ROOT / "common" / "contracts"
BUILD: Final = ROOT / "build"
_RENEW: Final = {"FORGE_SNAPSHOT_CHECK": "false", "FORGE_SNAPSHOT_EMIT": "true"}


def _ran(name: str, *command: str | Path, more: Mapping[str, str] | None = None) -> bool:
    """Run a command in the contracts' folder. forge keeps its caches in build/foundry, its home folder."""
    [forge] = CONTRACTS.glob("node_modules/@foundry-rs/forge-*/bin")  # npm's wrapper exits with 0 when tests fail
    home = BUILD / "foundry"
    home.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join((str(forge), str(ROOT / ".venv-slither" / "bin"), os.environ["PATH"]))
    done = subprocess.run(
        [str(part) for part in command],
        cwd=CONTRACTS,
        env={**os.environ, "HOME": str(home), "PATH": path, **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (BUILD / f"{name}.log").write_text(done.stdout, "utf-8")
    print(done.stdout if done.returncode else done.stdout.strip().rpartition("\n")[2], flush=True)
    return done.returncode == 0


def _forge(profile: str, more: Mapping[str, str] | None = None) -> bool:
    return _ran("forge", "forge", "test", "--color", "never", more={"FOUNDRY_PROFILE": profile, **(more or {})})


def _test() -> bool:
    print("contracts: forge test (a minute; the first run compiles for two more)", flush=True)
    if not _forge("default"):
        return False
    print("contracts: gas of each operation against the snapshots", flush=True)
    return _forge("gas")


def _prices() -> bool:
    print("contracts: proofs of prices", flush=True)
    return _ran("prices", ROOT / ".venv-halmos" / "bin" / "python", Path(__file__).with_name("prices.py"))


def _slither() -> bool:
    """Findings inside OpenZeppelin's transient guard are false: slither recognises `nonReentrant` only by name."""
    print("contracts: slither (half a minute)", flush=True)
    out = BUILD / "slither"
    folders = {"FOUNDRY_OUT": str(out / "out"), "FOUNDRY_CACHE_PATH": str(out / "cache")}
    return _ran("slither", "slither", ".", "--config-file", "slither.config.json", more=folders)


CHECKS: Final[Mapping[str, Callable[[], bool]]] = {
    "test": _test,
    "deep": lambda: _forge("deep"),
    "snapshot": lambda: _forge("gas", _RENEW),
    "prices": _prices,
    "slither": _slither,
}
PROOFS: Final = {"prove": False, "planted": True}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contracts")
    parser.add_argument(
        "names", nargs="+", choices=(*CHECKS, *PROOFS), metavar="NAME", help=", ".join((*CHECKS, *PROOFS))
    )
    parser.add_argument("--match", default="", help="proofs: a regular expression of their names, after check_")
    options = parser.parse_args()
    tools = {"prices": "halmos", "prove": "halmos", "planted": "halmos", "slither": "slither"}
    require(PACKAGES, *{f".venv-{tools[name]}/.ready" for name in options.names if name in tools})
    held = [
        CHECKS[name]() if name in CHECKS else proofs.hold(options.match, planted=PROOFS[name]) for name in options.names
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
