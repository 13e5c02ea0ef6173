"""`make soak-selftest`: faults put into the market one by one, each of which the soak has to find.

    python -m tests.soak.planted [name …]

A fault is a patch beside this file, against the tree as it is; one that does not apply any more fails. It is applied to
a copy below `build/`, which is soaked for long enough to meet it. Found is what is told under the invariant that the
fault breaks: another one's word may be chance. Exits with 1 when a fault was not found.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[3]
PATCHES: Final = Path(__file__).parent
WORK: Final = ROOT / "build" / "planted-soak"
_COPIED: Final = ("common", "coordinatord", "svcd")  # what patches change; all else is linked
_LONGEST: Final = 1200  # seconds


@attrs.frozen
class Planted:
    """`breaks`: the invariants of which one has to say so. `faults`: what the market must meet for it to show."""

    breaks: tuple[str, ...]
    faults: tuple[str, ...] = ()
    minutes: float = 1.0
    compiles: bool = False  # a contract is changed


PLANTED: Final = {
    "every_job_fails": Planted(("I13",)),
    "broadcast_before_stored": Planted(("I10",)),
    "undo_skips_a_table": Planted(("I4",), ("reorg",)),
    "cost_read_wrongly": Planted(("I4",)),
    "lease_given_to_two": Planted(("I9",)),
    "wrong_cid_kept": Planted(("I7",)),
    "session_limit_not_held": Planted(("I8",)),
    "nonce_not_used_up": Planted(("I8",)),
    "expired_session_honoured": Planted(("I8",)),
    "credit_forgotten": Planted(("I5",), ("token_paused",), compiles=True),
    "line_left_out_of_its_file": Planted(("I6",)),
    "budgets_not_held": Planted(("I12",)),
    "nothing_is_reclaimed": Planted(("I1", "I13"), minutes=2.0),
    "promised_and_dropped": Planted(("I1",), ("relayer_empty",), minutes=1.5),
}


def names() -> list[str]:
    return sorted(path.stem for path in PATCHES.glob("*.patch"))


def found(name: str) -> list[str]:
    """What the soak says of the tree with this fault, under the invariants that it breaks; empty when it finds
    nothing."""
    planted = PLANTED[name]
    tree = planted_tree(name)
    if planted.compiles:
        _compile(tree)
    out = tree / "out"
    options = [
        "--minutes",
        f"{planted.minutes:g}",
        "--faults",
        ",".join(planted.faults) or "none",
        "--fault-every",
        "3",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "tests.soak", *options, "--out", str(out)],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    if not (out / "soak.json").exists():
        raise RuntimeError(f"the soak of {name} did not run: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    told = json.loads((out / "soak.json").read_text())["invariants"]
    return [told[one]["detail"] for one in planted.breaks if not told[one]["holds"]]


def planted_tree(name: str) -> Path:
    """A tree like this one with the fault in it."""
    tree = WORK / name
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for one in ROOT.iterdir():
        if one.name in _COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(one, tree / one.name, ignore=ignored, symlinks=True)
        elif one.name not in ("build", ".git"):
            (tree / one.name).symlink_to(one)
    contracts = Path("common", "contracts", "node_modules")
    (tree / contracts).symlink_to(ROOT / contracts)
    # Git would take the tree around it for the one that is meant.
    around = {**os.environ, "GIT_CEILING_DIRECTORIES": str(WORK)}
    patch = PATCHES / f"{name}.patch"
    applied = subprocess.run(
        ["git", "apply", "--verbose", str(patch)], cwd=tree, env=around, capture_output=True, text=True, check=False
    )
    if applied.returncode or "Applied patch" not in applied.stderr:
        raise RuntimeError(f"{patch.name} does not apply to the tree as it is: renew it. {applied.stderr}")
    return tree


def _compile(tree: Path) -> None:
    contracts = tree / "common" / "contracts"
    subprocess.run(["node", "build.mjs", str(contracts)], cwd=contracts, check=True)


def tried(chosen: Sequence[str]) -> list[str]:
    """Each of them is soaked, and told of; back come those that were not found."""
    missed = []
    for name in chosen:
        began = time.monotonic()
        said = found(name)
        if not said:
            missed.append(name)
        told = said[0][:200] if said else f"NOT FOUND: {' or '.join(PLANTED[name].breaks)} held"
        print(f"{name} ({time.monotonic() - began:.0f} s): {told}", flush=True)
    return missed


if __name__ == "__main__":
    if missed := tried(sys.argv[1:] or names()):
        sys.exit(f"not found: {', '.join(missed)}")
